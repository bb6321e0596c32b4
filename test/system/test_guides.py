"""What README.md and the guides in docs show is what happens: settings are accepted, commands answer as printed, and the
lines for nginx and Apache throttle. Only paths and ports are changed."""

import gzip
import html
import json
import os
import re
import shutil
import subprocess
import unittest

from authority import Authority
from common import SystemTest
from daemon import (BUILD, DTHROTTLED, PATIENCE, ROOT, SANITIZED, Daemon, clean_environment, fresh_directory, rule, run,
                    wait_until)
from etcd import AVAILABLE as HAS_ETCD
from etcd import WHY_NOT as WHY_NO_ETCD
from etcd import Etcd
from fleet import wait_settled
from guides import BLOCKS, PAGES, PLAYED, block, examples, masked, plays, plays_all
from leases import LeaseDaemon, resource
from test_ask import AskDaemon
from test_capacity import fleet
from test_http import HttpDaemon
from test_resp import RespDaemon
from test_sim import line
from test_tls import TlsDaemon
from webserver import APACHE_MODULE, NGINX_MODULE, Apache, Nginx, open_ask_daemon, open_daemon

import test_package    # noqa: F401  which plays blocks too

TRIES = 5    # of a story whose clients have to be quicker than the rate
PLENTY = rule(burst=100)

NOT_PLAYED = {
    block("README.md", "web-1"): "a picture",
    block("operating.md", "docker build"): "no Docker and no Kubernetes here; test_containers.py checks their files",
    block("frameworks.md", "const { ExpressStore }"):
        "its packages are not in Debian; test_frameworks.py plays the same where they are installed",
}


class Pages(SystemTest):
    def test_every_block_is_played_by_a_test_or_listed_with_a_reason(self):
        self.assertEqual([b for b in BLOCKS if b not in PLAYED and b not in NOT_PLAYED], [])
        self.assertEqual([b for b in NOT_PLAYED if b in PLAYED], [])

    def test_nothing_is_shown_but_in_blocks_that_say_their_language(self):
        self.assertEqual([b for b in BLOCKS if not b.language], [])
        for page in PAGES:
            outside = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
            self.assertEqual(re.findall(r"^(?: {4}|\t).*$", outside, re.M), [], page.name)


def shell(command, variables=None, **options):
    return subprocess.run(["bash", "-c", command], cwd=ROOT, env=clean_environment(**(variables or {})), timeout=PATIENCE,
                          capture_output=True, text=True, **options).stdout


def on(daemon, command):
    """The command of a page, for that daemon."""
    for part in ("dthrottlectl", "dthrottled"):
        command = re.sub(rf"(?<![\w/-])(build/)?{part}(?= )", str(BUILD / part), command)
    command = command.replace(f"{BUILD}/dthrottlectl", f"{BUILD}/dthrottlectl --socket {daemon.admin_path}")
    return command.replace("/run/dthrottle", str(daemon.directory))


class Console(SystemTest):
    def played(self, text, daemon):
        """The commands of a console on that daemon, but those that start it: (command, printed, answer)."""
        for command, printed in examples(text):
            if command == "scripts/run":    # it has been started, see tests of its own
                continue
            ours = on(daemon, command).replace("127.0.0.1:7313", daemon.http)
            yield command, printed, shell(ours).replace("\r", "")

    def assert_as_printed(self, text):
        minimal = (ROOT / "conf/minimal.toml").read_text()
        limits = minimal[minimal.index("[[rule]]"):]
        for attempt in range(TRIES):
            with HttpDaemon(limits) as daemon:
                daemon.http = f"127.0.0.1:{daemon.http_port}"
                story = list(self.played(text, daemon))
            if all(masked(printed) == masked(answer) for _, printed, answer in story):
                return self.assertGreater(len(story), 0)
        for command, printed, answer in story:
            self.assertEqual(masked(answer), masked(printed), command)

    @plays("README.md", "$ scripts/run")
    def test_the_first_page(self, text):
        self.assert_as_printed(text)

    @plays("programs.md", "$ curl -si")
    def test_http(self, text):
        self.assert_as_printed(text)

    @plays("planning.md", "$ build/dthrottle-plan", "$ build/dthrottle-sim compare")
    def test_planner_and_simulator(self, *texts):
        for command, printed in [example for text in texts for example in examples(text)]:
            answer = shell(command.replace("build/", f"{BUILD}/")).splitlines()
            for shown in printed.splitlines():
                self.assertIn(shown.rstrip(), [a.rstrip() for a in answer], command)

    @plays("planning.md", "$ build/dthrottle-sim replay")
    def test_replay(self, text):
        ((command, printed),) = examples(text)
        directory = fresh_directory()
        log = "".join(line(second, host) for second in range(120) for host in ("192.0.2.7", *3 * ["203.0.113.9"]))
        (directory / "access.log.gz").write_bytes(gzip.compress(log.encode()))
        (directory / "dthrottled.toml").write_text(rule(name="client", match="ip:*", burst=20, rate=1.0))
        ours = command.replace("build/", f"{BUILD}/").replace("access.log.gz", f"{directory}/access.log.gz")
        answer = [masked(a) for a in shell(ours.replace("dthrottled.toml", f"{directory}/dthrottled.toml")).splitlines()]
        for shown in printed.splitlines():
            self.assertIn(re.sub(r" +", " ", masked(shown)), [re.sub(r" +", " ", a) for a in answer], answer)

    @plays("planning.md", "[10/Oct/2000")
    def test_a_log_of_questions(self, text):
        directory = fresh_directory()
        self.addCleanup(shutil.rmtree, directory)
        (directory / "questions.log").write_text(text)
        (directory / "dthrottled.toml").write_text("".join(
            rule(name=name, match=f"{name}:*", burst=10, **more)
            for name, more in (("user", {"delay": "1s"}), ("tenant", {}), ("calls", {"in_flight": 5}))))
        answer = shell(f"{BUILD}/dthrottle-sim replay {directory}/questions.log --rules {directory}/dthrottled.toml")
        self.assertIn(f"{len(text.splitlines())} lines", answer)
        self.assertNotIn("unreadable", answer)
        self.assertIn("asked     2\nrefused   0 ", answer)
        self.assertIn("places    1: at most 1 at once, of calls:acme", answer)

    @plays("programs.md", "$ echo 'take")
    def test_a_question(self, text):
        ((command, printed),) = examples(text)
        limits = [rule(name=name, match=f"{name}:*", burst=burst)
                  for name, burst in (("user", 10), ("net", 3), ("tenant", 100))]
        with AskDaemon(*limits) as daemon:
            self.assertEqual(shell(on(daemon, command)), printed)

    @plays("programs.md", "$ redis-cli CL.THROTTLE")
    def test_clients_of_redis(self, text):
        ((command, printed),) = examples(text)
        with RespDaemon(PLENTY, resp={"accept_limits": True}) as daemon:
            answer = shell(command.replace("redis-cli", f"redis-cli --no-raw -s {daemon.resp_path}"))
            self.assertEqual(answer, re.sub(r" +#.*", "", printed))

    @plays("programs.md", "curl -s --unix-socket")
    def test_a_question_over_http_and_resp(self, text):
        http, resp = text.splitlines()
        with HttpDaemon(rule(burst=3)) as daemon:
            self.assertEqual([f'"allowed":{allowed}' in shell(on(daemon, http)) for allowed in ("true", "false")], 2 * [True])
        with RespDaemon(rule(burst=3)) as daemon:
            answers = [shell(resp.replace("redis-cli", f"redis-cli -s {daemon.resp_path}")) for _ in range(2)]
            self.assertEqual([answer.split()[0] for answer in answers], ["0", "1"])

    @plays("operating.md", "scrape_configs")
    def test_prometheus_finds_the_metrics(self, text):
        target = re.search(r'targets: \["([^"]+)"\]', text)[1]
        self.assertIn(f'http = "{target}"', (ROOT / "conf/dthrottled.toml").read_text())
        with HttpDaemon(PLENTY) as daemon:
            self.assertIn("# TYPE dthrottled_", shell(f"curl -s 127.0.0.1:{daemon.http_port}/metrics"))

    @plays("sharing.md", "dthrottlectl indicate")
    def test_an_application_reports(self, text):
        with fleet(200, hosts=2, indicator="reported", gain=0.005) as hosts:
            wait_settled(hosts)
            self.assertEqual(shell(on(hosts[0], text.strip())).split(), ["tag", "api:search", "indicated", "0.042"])


class Commands(SystemTest):
    """Those that stand in sentences and tables."""

    PLACES = {"TAG": "C", "FILE": str(ROOT / "conf/minimal.toml"), "N": "3", "VALUE": "0.5", "RESOURCE": "calls"}

    def inline(self):
        """Commands of our programs, with something for their placeholders: (program, words)."""
        for page in PAGES:
            text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
            for words in re.findall(r"`((?:dthrottle(?:d|ctl|-plan|-sim)|scripts/[a-z-]+)(?: [^`]*)?)`", text):
                program, *rest = words.split()
                yield program, [self.PLACES.get(word, word) for word in rest]

    def test_the_daemon_knows_them(self):
        table = (ROOT / "docs/operating.md").read_text().partition("| command | shows |")[2].partition("\n\n")[0]
        listed = [c for row in table.splitlines() for c in re.findall(r"`([^`]+)`", row.split("|")[1] if row else "")]
        self.assertGreater(len(listed), 15)
        asked = [" ".join(self.PLACES.get(w, w) for w in re.sub(r"[][]", "", c).split()) for c in listed]
        own = {"lease", "keygen"}    # of dthrottlectl itself
        asked += [" ".join(words) for program, words in self.inline() if program == "dthrottlectl" and {*words[:1]} - own]
        with LeaseDaemon(resource("calls")) as daemon:
            unknown = daemon.admin("nonsense").partition("nonsense")[0]
            for command in asked:
                self.assertFalse(daemon.admin(command).startswith(unknown), command)

    def test_programs_take_them(self):
        for program, words in self.inline():
            if program.startswith("scripts/"):
                self.assertTrue(os.access(ROOT / program, os.X_OK), program)
            elif program != "dthrottlectl":
                short = words[:1] in (["--check"], ["model"]) and len(words) > 1    # others take long, or need files
                done = run(BUILD / program, *(words if short else [word for word in words if word[0] != "-"] + ["--help"]))
                self.assertEqual(done.returncode, 0, (program, words, done.stderr))


class Operators(SystemTest):
    @plays("operating.md", "$ dthrottlectl limit keygen", "dthrottlectl limit set login")
    def test_an_operator_makes_a_key_and_sets_limits(self, keygen, commands):
        directory = fresh_directory()
        self.addCleanup(shutil.rmtree, directory)

        def shell(command, **variables):
            return run("bash", "-ec", command, cwd=directory, env={"PATH": f"{BUILD}:{os.environ['PATH']}", **variables})
        (command, printed), = examples(keygen)
        made = shell(command).stdout

        def without_key(text):
            return re.sub(r"[\w+/]{43}=", "KEY", text)
        self.assertEqual(without_key(made), without_key(printed))
        key = re.search(r'"(alice \S+)"', made)[1]
        with Daemon(rule(name="login", match="login:*"), operator={"keys": [key]}) as daemon:
            done = shell(commands, DTHROTTLECTL_SOCKET=daemon.admin_path)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual([row["name"] for row in daemon.admin_json("limit list")], ["login:partner-7"])

    @plays("operating.md", "dthrottlectl candidate /etc", "dthrottlectl candidate promote", "dthrottlectl limit rules")
    def test_rules_are_tried_and_put_in_force(self, trying, promoting, clearing):
        directory = fresh_directory()
        self.addCleanup(shutil.rmtree, directory)
        (directory / "new.toml").write_text('[[rule]]\nname = "all"\nburst = 3\nrate = 1.0\n')
        *begin, stop = trying.replace("/etc/dthrottle", str(directory)).splitlines()
        with Daemon(rule(name="default", burst=10, rate=1.0)) as daemon:
            environment = {"PATH": f"{BUILD}:{os.environ['PATH']}", "DTHROTTLECTL_SOCKET": daemon.admin_path}
            for commands, burst in ((begin, 10), ([stop], 10), ([*begin, promoting], 3), ([clearing], 10)):
                done = run("bash", "-ec", "\n".join(commands).replace(" --key alice.operator", ""), env=environment)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(daemon.admin_json("show C")["burst"], burst)


class Settings(SystemTest):
    @plays_all("toml")
    def test_every_block_is_accepted(self, shown):
        directory = fresh_directory()
        self.make_keys(directory)
        self.assertGreater(len(shown), 5)
        for page, text in shown:
            path = directory / "settings.toml"
            for key, name in re.findall(r'^(key_file|authorized_keys) = "/etc/dthrottle/([^/"]*)"', text, re.M):
                if key == "authorized_keys":
                    (directory / name).mkdir(exist_ok=True)
                elif name != "web-1.key":
                    shutil.copy(directory / "web-1.key", directory / name)
            path.write_text(text.replace("/etc/dthrottle", str(directory)))
            done = run(DTHROTTLED, "--check", path)
            self.assertEqual(done.returncode, 0, f"{page}\n{text}\n{done.stdout}{done.stderr}")

    def make_keys(self, directory):
        text = block("sharing.md", "mkdir -p").text.replace("chown dthrottle", "chown root")
        shell(text.replace("/etc/dthrottle", str(directory)).replace("dthrottlectl", f"{BUILD}/dthrottlectl"))

    @plays("sharing.md", "mkdir -p")
    def test_keys_are_made(self, _):
        directory = fresh_directory()
        self.make_keys(directory)
        self.assertEqual(sorted(path.name for path in directory.iterdir()), ["peers", "web-1.key", "web-1.pub"])


class WebServers(SystemTest):
    RULE = '[[rule]]\nname = "login"\nmatch = "login:127.0.0.1"\nburst = 3\nrate = "1/h"\n'

    def assert_throttles(self, server):
        wait_until(lambda: server.get("/login").status in (404, 429), "it is asked")
        self.assertEqual([server.get("/login").status == 429 for _ in range(6)][-2:], [True, True])
        self.assertEqual(server.get("/").status, 200)

    def nginx(self, text, daemon):
        """A server of a block, which may begin with what belongs to other levels."""
        load = "load_module modules/ngx_http_dthrottle_module.so;"
        begin, _, rest = text.partition("\n\n")
        main = begin if begin.startswith(load) else load
        maps = begin if begin.startswith("map ") else ""
        server = rest if begin in (main, maps) else text
        asks = f"dthrottle_server unix:{daemon.query_path}; dthrottle_timeout 30s;\n{maps}"
        return Nginx(server.replace("/run/dthrottle", str(daemon.directory)), http=asks,
                     main=main.replace("modules/ngx_http_dthrottle_module.so", str(NGINX_MODULE)))

    @plays_all("nginx", "README.md", "web-servers.md")
    def test_nginx(self, shown):
        for _, text in shown:
            with self.subTest(text), open_ask_daemon(self.RULE) as daemon, self.nginx(text, daemon) as running:
                self.assert_throttles(running)

    def test_the_body_of_a_refusal_is_json_also_where_waiting_does_not_help(self):
        (text,) = [b.text for b in BLOCKS if b.page == "web-servers.md" and "application/json" in b.text]
        for rules, seconds in ((self.RULE, range(1, 3601)), (rule(match="tenant:*", burst=1) + self.RULE, [None])):
            with self.subTest(rules), open_ask_daemon(rules) as daemon, self.nginx(text, daemon) as running:
                refused = wait_until(lambda server=running: (said := server.get("/login")).status == 429 and said, "a refusal")
                self.assertIn(json.loads(refused.body)["retry_after"], seconds)

    @plays_all("apache")
    def test_apache(self, shown):
        load = "LoadModule dthrottle_module modules/mod_dthrottle.so\n"
        for _, text in shown:
            text = load + text.replace(load, "")
            text = text.replace("modules/mod_dthrottle.so", str(APACHE_MODULE))
            with self.subTest(text), open_ask_daemon(self.RULE) as daemon:
                text = text.replace("/run/dthrottle", str(daemon.directory))
                with Apache(f"{text}DthrottleServer unix:{daemon.query_path}\nDthrottleTimeout 30000ms\n") as running:
                    self.assert_throttles(running)


PYTHON = {**clean_environment(), "PYTHONPATH": f"{ROOT}/src/integration/python"}


class Frameworks(SystemTest):
    """docs/frameworks.md."""

    @plays("frameworks.md", "import dthrottle\n\nthrottle")
    def test_python(self, asks):
        with AskDaemon(rule(burst=1)) as daemon:
            program = asks.replace("Throttle()", f"Throttle('unix:{daemon.query_path}', deadline=30)") + "print(served)\n"
            outcomes = [run("python3", "-c", program, env=PYTHON).stdout.strip() for _ in range(2)]
            self.assertEqual(outcomes, ["True", "False"])

    @plays("frameworks.md", "from dthrottle.library")
    def test_python_with_the_library(self, opens):
        if SANITIZED:
            self.skipTest("the library is built with a sanitizer")
        with AskDaemon(rule(burst=1), page={"entries": 64}) as daemon:
            here = f'LibraryThrottle("unix:{daemon.query_path}", deadline=30, library="{BUILD}/src/client/libdthrottle.so")'
            program = opens.replace("LibraryThrottle()", here) + "print(sum(bool(throttle.ask('C')) for _ in range(20000)))\n"
            done = run("python3", "-c", program, env=PYTHON)
            self.assertEqual(done.stdout.strip(), "1", done.stderr)
            wait_until(lambda: daemon.stats()["page_refused"] > 0, "the page has refused some of them")

    @plays("frameworks.md", "pip install")
    def test_python_is_installed(self, text):
        python = "/usr/bin/python3"    # whose packages build this one, so that nothing has to be fetched
        if run(python, "-c", "import ensurepip, setuptools, wheel").returncode != 0:
            self.skipTest("python3-venv, python3-setuptools or python3-wheel is not installed")
        directory = fresh_directory()
        self.addCleanup(shutil.rmtree, directory)
        shutil.copytree(ROOT / "src/integration/python", directory / "src/integration/python")
        self.assertEqual(run(python, "-m", "venv", "--system-site-packages", directory / "env").returncode, 0)
        own = {"PATH": f"{directory}/env/bin:{os.environ['PATH']}", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "false"}
        shell(f"cd {directory} && {text}", own)
        said = shell(f"cd {directory} && python3 -c 'import dthrottle; print(dthrottle.__file__)'", own)
        self.assertEqual(said.partition("/lib/")[0], f"{directory}/env")

    @plays("frameworks.md", "npm install")
    def test_node_is_installed(self, text):
        if shutil.which("npm") is None:
            self.skipTest("npm is not installed")
        directory = fresh_directory()
        self.addCleanup(shutil.rmtree, directory)
        command = text.replace("/path/to/clone", str(ROOT))
        shell(command.replace("npm install", f"npm --offline --prefix {directory} install"))
        framework = directory / "node_modules/rate-limiter-flexible"    # what the application has of it
        (framework / "lib").mkdir(parents=True)
        (framework / "index.js").write_text("module.exports = { RateLimiterRes: class {} }\n")
        (framework / "lib/RateLimiterStoreAbstract.js").write_text("module.exports = class {}\n")
        for module, name in (("dthrottle", "Throttle"), ("dthrottle/flexible", "RateLimiterDthrottle")):
            said = shell(f"cd {directory} && node -p 'typeof require(\"{module}\").{name}'", {"NODE_PATH": ""})
            self.assertEqual(said, "function\n", module)

    @plays("frameworks.md", "gem ")
    def test_ruby_is_installed(self, text):
        if shutil.which("ruby") is None:
            self.skipTest("ruby is not installed")
        reads = ("def gem(name, path:)\n  spec = Gem::Specification.load(File.join(path, name + '.gemspec'))\n"
                 "  puts spec.name, spec.files.all? { |file| File.exist?(File.join(path, file)) }\nend\n")
        done = run("ruby", "-e", reads + text.replace('"dthrottle/src', f'"{ROOT}/src'), cwd=ROOT)
        self.assertEqual(done.stdout, "dthrottle\ntrue\n", done.stderr)

    @plays("frameworks.md", "const { Throttle }")
    def test_node(self, program):
        directory = fresh_directory()
        (directory / "node_modules").mkdir()
        (directory / "node_modules/dthrottle").symlink_to(ROOT / "src/integration/node")
        with AskDaemon(rule(burst=1)) as daemon:
            ours = program.replace("Throttle()", f"Throttle({{ query: 'unix:{daemon.query_path}', deadlineMs: 30000 }})")
            outcomes = [run("node", "-e", ours, cwd=directory).stdout.strip() for _ in range(2)]
            self.assertEqual(outcomes, ["true", "false"])

    @plays("frameworks.md", "require \"dthrottle\"")
    def test_ruby(self, program):
        if shutil.which("ruby") is None:
            self.skipTest("ruby is not installed")
        with AskDaemon(rule(burst=1)) as daemon:
            ours = program.replace("Throttle.new", f"Throttle.new(query: 'unix:{daemon.query_path}', deadline: 30)")
            outcomes = [run("ruby", "-I", ROOT / "src/integration/ruby/lib", "-e", ours).stdout.strip() for _ in range(2)]
            self.assertEqual(outcomes, ["true", "false"])

    @plays("frameworks.md", "Rack::Attack.cache")
    def test_rack_attack(self, text):
        if run("ruby", "-e", "require 'rack/attack'").returncode != 0:
            self.skipTest("ruby-rack-attack is not installed")
        around = ("require 'rack'\nrequire 'rack/attack'\nrequire 'dthrottle'\n{}\n"
                  "app = Rack::MockRequest.new(Rack::Attack.new(->(_) {{ [200, {{}}, []] }}))\n"
                  "puts Array.new(3) {{ app.get('/', 'REMOTE_ADDR' => '192.0.2.1').status }}.join(' ')\n")
        with AskDaemon(rule(match="rack::attack:logins:192.0.2.1", burst=2)) as daemon:
            ours = text.replace("Store.new", f"Store.new(questions: 'unix:{daemon.ask_path}', deadline: 30)")
            done = run("ruby", "-I", ROOT / "src/integration/ruby/lib", "-e", around.format(ours))
            self.assertEqual(done.stdout, "200 200 429\n", done.stderr)

    @plays("frameworks.md", "go mod edit", "package main")
    def test_go(self, require, program):
        if shutil.which("go") is None:
            self.skipTest("go is not installed")
        directory = fresh_directory()
        shell(f"cd {directory} && go mod init guide && " + require.replace("/path/to/clone", str(ROOT)))
        with AskDaemon(rule(burst=1)) as daemon:
            options = f'Options{{Query: "unix:{daemon.query_path}", Deadline: 30e9}}'
            (directory / "main.go").write_text(program.replace("Options{}", options))
            outcomes = [run("go", "run", ".", cwd=directory).stdout.strip() for _ in range(2)]
            self.assertEqual(outcomes, ["true", "false"])

    @plays("frameworks.md", "lua_package_path")
    def test_lua_in_nginx(self, text):
        http, server = text.split("\nserver {\n")
        with open_daemon(rule(burst=3)) as daemon:
            http = (http.replace("/path/to/clone", str(ROOT)).replace(
                "open()", f'open{{ query = "unix:{daemon.query_path}", deadline_ms = 30000, '
                          f'library = "{BUILD}/src/client/libdthrottle.so" }}'))
            modules = "".join(f"load_module /usr/lib/nginx/modules/{name}.so;\n"
                              for name in ("ndk_http_module", "ngx_http_lua_module"))
            with Nginx(server.strip()[:-1], http=http, main=modules, shown="$status $uri") as running:
                self.assertEqual([running.get("/login").status for _ in range(5)], [404, 404, 404, 429, 429])

    @plays("frameworks.md", "import dthrottle.limits", "[[rule]]")
    def test_flask_limiter(self, limits, settings):
        if run("/usr/bin/python3", "-c", "import flask_limiter").returncode != 0:
            self.skipTest("python3-flask-limiter is not installed")
        around = ("import flask\nfrom flask_limiter import Limiter\nfrom flask_limiter.util import get_remote_address\n"
                  "app = flask.Flask('guide')\n{}app.add_url_rule('/', view_func=lambda: 'served')\nclient = app.test_client()\n"
                  "print([client.get('/').status_code for _ in range(110)].count(200))\n")
        with AskDaemon(settings.replace('rate = "100/m"', 'rate = "100/d"')) as daemon:
            limits = limits.replace('"dthrottle://"', f'"dthrottle://{daemon.ask_path}?deadline=30"')
            done = run("/usr/bin/python3", "-c", around.format(limits), env=PYTHON)
            self.assertEqual(done.stdout.strip(), "100", done.stderr)

    @plays("frameworks.md", "import dthrottle\n\nwith")
    def test_leases(self, text):
        addresses = re.search(r'"(tcp:.*?)"', text)[1]
        with LeaseDaemon(resource("backend-calls", learning_mode_duration="0s")) as daemon:
            around = "left = list(range(5))\ndef work(): return left\ndef call(): print(left.pop())\n"
            done = run("python3", "-c", around + text.replace(addresses, daemon.lease_address), env=PYTHON)
            self.assertEqual(done.stdout.split(), ["4", "3", "2", "1", "0"], done.stderr)


class FirstPage(SystemTest):
    """The table of languages in README.md: each of its rows is a program that asks about login:bob."""

    ROWS = {name: [html.unescape(code) for code in re.findall(r"`([^`]+)`", cell)] for name, cell in re.findall(
        r"^\| ([^|`]+) \| (`.*) \|$", (ROOT / "README.md").read_text().partition("| ask from |")[2], re.M)}
    NOT_PLAYED = {
        "Flask-Limiter, slowapi": "docs/frameworks.md shows the whole, which is played",
        "Rack::Attack": "docs/frameworks.md shows the whole, which is played",
        **dict.fromkeys(["express-rate-limit", "rate-limiter-flexible", "@fastify/rate-limit"],
                        "not in Debian; test_frameworks.py plays the same where they are installed"),
    }

    def test_every_row_is_played_or_listed_with_a_reason(self):
        played = {"Python", "Node", "Ruby", "Go", "LuaJIT, OpenResty", "HTTP, any client of Redis"}
        self.assertEqual(set(self.ROWS), played | set(self.RECIPES) | set(self.NOT_PLAYED))

    def assert_refuses(self, command, row, opening, *, around, path=None, **options):
        """The second of two runs refuses. `opening` is how the row opens, and how it has to for an address."""
        program = "\n".join(code for code in self.ROWS[row] if code not in around)
        self.assertIn(opening[0], program)
        with Daemon(rule(burst=1)) as daemon:
            program = around.replace("PROGRAM", program.replace(opening[0], opening[1] % f"unix:{daemon.query_path}"))
            if path is not None:
                path.write_text(program)
            runs = [run(*command, *([] if path else [program]), **options) for _ in range(2)]
        self.assertEqual([done.stdout for done in runs], ["", "refused\n"], runs[0].stderr)

    def test_python(self):
        self.assert_refuses(["python3", "-c"], "Python", ("Throttle()", "Throttle('%s', deadline=30)"), env=PYTHON,
                            around="def refuse(): print('refused')\nPROGRAM")

    def test_node(self):
        node = {"NODE_PATH": str(fresh_directory())}
        self.addCleanup(shutil.rmtree, node["NODE_PATH"])
        os.symlink(ROOT / "src/integration/node", f"{node['NODE_PATH']}/dthrottle")
        self.assert_refuses(["node", "-e"], "Node", ("Throttle()", "Throttle({ query: '%s', deadlineMs: 30000 })"), env=node,
                            around="const refuse = () => console.log('refused');\n(async () => {\nPROGRAM\n})()")

    @unittest.skipIf(shutil.which("ruby") is None, "ruby is not installed")
    def test_ruby(self):
        self.assert_refuses(["ruby", "-I", ROOT / "src/integration/ruby/lib", "-e"], "Ruby",
                            ("Throttle.new", "Throttle.new(query: '%s', deadline: 30)"),
                            around="def refuse = puts('refused')\nPROGRAM")

    @unittest.skipIf(shutil.which("luajit") is None, "luajit2 is not installed")
    def test_lua(self):
        library = f'library = "{BUILD}/src/client/libdthrottle.so"'
        self.assert_refuses(["luajit", "-e"], "LuaJIT, OpenResty",
                            ("open()", 'open{ query = "%s", deadline_ms = 30000, ' + library + " }"),
                            around="function refuse() print('refused') end\nPROGRAM",
                            env={"LUA_PATH": f"{ROOT}/src/integration/lua/?.lua;;"})

    @unittest.skipIf(shutil.which("go") is None, "go is not installed")
    def test_go(self):
        directory = fresh_directory()
        self.addCleanup(shutil.rmtree, directory)
        shell(f"cd {directory} && go mod init guide && go mod edit -require=dthrottle@v0.1.0 "
              f"-replace=dthrottle={ROOT}/src/integration/go")
        first, *rest = self.ROWS["Go"]
        self.assertEqual(first, 'import "dthrottle"')
        around = (f'package main\nimport "context"\nimport "fmt"\n{first}\nfunc refuse() {{ fmt.Println("refused") }}\n'
                  "func main() {\nctx := context.Background()\nPROGRAM\n}\n")
        self.assert_refuses(["go", "run", "."], "Go", ("Options{}", 'Options{Query: "%s", Deadline: 30e9}'), cwd=directory,
                            around=around, path=directory / "main.go")

    RECIPES = {"HAProxy": "haproxy-spoe/haproxy.cfg", "Envoy": "envoy-ratelimit/envoy.yaml"}    # which test_recipes.py runs

    def test_proxies(self):
        for name, recipe in self.RECIPES.items():
            text = (ROOT / "conf/examples" / recipe).read_text()
            for shown in self.ROWS[name]:
                self.assertIn(shown.split(" config ")[0], text)

    def test_http_and_clients_of_redis(self):
        http, resp = self.ROWS["HTTP, any client of Redis"]
        with HttpDaemon(rule(burst=1)) as daemon:
            ask = http.replace("127.0.0.1:7313", f"127.0.0.1:{daemon.http_port}")
            self.assertEqual([f'"allowed":{allowed}' in shell(ask) for allowed in ("true", "false")], 2 * [True])
        with RespDaemon(rule(burst=3)) as daemon:
            answers = [shell(resp.replace("redis-cli", f"redis-cli -s {daemon.resp_path}")) for _ in range(2)]
            self.assertEqual([answer.split()[0] for answer in answers], ["0", "1"])


class Leases(SystemTest):
    """docs/leases.md."""

    def daemon(self):
        return LeaseDaemon(resource("disk-writes", learning_mode_duration="0s"))

    @plays("leases.md", "$ echo 'get")
    def test_by_hand(self, text):
        (get, granted), (remove, _) = examples(text)
        with self.daemon() as daemon:
            self.assertEqual(masked(shell(on(daemon, get))), masked(granted))
            (daemon.directory / "cache").mkdir()
            for name in ("old", "new", "new copy", "it's old"):
                path = daemon.directory / "cache" / name
                path.write_text("")
                if name != "new":
                    os.utime(path, (0, 0))
            shell(on(daemon, remove.replace("/srv/cache", f"{daemon.directory}/cache")))
            self.assertEqual(os.listdir(daemon.directory / "cache"), ["new"])

    @plays("leases.md", "tls = ssl")
    def test_by_tls_in_python(self, text):
        with Authority() as ours:
            for name in ("host", "job"):
                ours.sign(name)
            with TlsDaemon(ours, client_ca_file="root.pem") as daemon:
                text = text.replace("/etc/ssl/leases-ca.pem", str(ours.certificate)).replace("10.0.0.1:7318",
                                                                                          f"127.0.0.1:{daemon.tls_port}")
                program = (f"import dthrottle, ssl\n{text.replace('/etc/ssl/', f'{ours.folder}/')}"
                           "print(leases.rate('calls').take(30))\nleases.close()\n")
                done = subprocess.run(["python3", "-c", program], env=PYTHON, capture_output=True, text=True)
                self.assertEqual(done.stdout, "True\n", done.stderr)

    @plays("leases.md", "$ etcdctl")
    @unittest.skipUnless(HAS_ETCD, WHY_NO_ETCD)
    def test_resources_of_a_fleet(self, text):
        ((command, _),) = examples(text)
        with Etcd() as etcd, LeaseDaemon(resource("other"), lease={
                "etcd": etcd.urls, "etcd_resources": "dthrottle/resources"}) as daemon:
            (daemon.directory / "resources.toml").write_text(resource("disk-writes", learning_mode_duration="0s"))
            shell(f"cd {daemon.directory} && {command}", {"ETCDCTL_API": "3", "ETCDCTL_ENDPOINTS": ",".join(etcd.urls)})
            wait_until(lambda: daemon.lease("get a disk-writes 50").startswith("lease 50 "), "the change is in force")


LIBRARY = BUILD / "src/client"


class Programs(SystemTest):
    def outcomes(self, compiler, around, program, turns=2):
        """What the program says, turn by turn."""
        directory = fresh_directory()
        self.addCleanup(shutil.rmtree, directory)
        source = directory / f"guide.{'c' if compiler == 'gcc' else 'cc'}"
        source.write_text(around.replace("PROGRAM", program))
        done = run(compiler, "-I", ROOT / "src/client", source, "-o", directory / "guide", LIBRARY / "libdthrottle.so",
                   f"-Wl,-rpath,{LIBRARY}")
        self.assertEqual(done.returncode, 0, done.stderr)
        return [run(directory / "guide").stdout.split() for _ in range(turns)]

    AROUND = ("#include <stdio.h>\n#include \"dthrottle.h\"\n"
              "#define refuse(...) return puts(\"refused\")\nint main(void) {\nPROGRAM\nreturn puts(\"served\");\n}\n")

    def patient(self, program, path):
        return re.sub(r", 20\)", ", 30000)", program.replace("(NULL, NULL)", f'("unix:{path}", NULL)'))

    @plays("README.md", "dthrottle *throttle")
    def test_c_on_the_first_page(self, program):
        self.assert_asks(program)

    @plays("programs.md", "dthrottle *throttle")
    def test_c(self, program):
        self.assert_asks(program)

    def assert_asks(self, program):
        with Daemon(rule(burst=1)) as daemon:
            said = self.outcomes("gcc", self.AROUND, self.patient(program, daemon.query_path))
            self.assertEqual(said, [["served"], ["refused"]])

    @plays("programs.md", "dthrottle *questions = dthrottle_open_ask(NULL, NULL);    //")
    def test_a_question_in_c(self, program):
        with AskDaemon(rule(burst=5)) as daemon:
            said = self.outcomes("gcc", self.AROUND, self.patient(program, daemon.ask_path))
            self.assertEqual(said, [["served"], ["refused"]])
            self.assertAlmostEqual(daemon.admin_json("show user:alice")["level"], 4, places=3)

    @plays("programs.md", "dthrottle *questions = dthrottle_open_ask(NULL, NULL);\n")
    def test_a_hold_in_c(self, program):
        with AskDaemon(rule(burst=1000)) as daemon:
            self.assertEqual(self.outcomes("gcc", self.AROUND, self.patient(program, daemon.ask_path), 1), [["served"]])
            self.assertAlmostEqual(daemon.admin_json("show tenant:acme")["level"], 1000 - 371, places=1)

    @plays("leases.md", "dthrottle::Leases")
    def test_leases_in_cpp(self, program):
        around = ("#include <cstdio>\n#include \"dthrottle_lease.hpp\"\nint left = 3;\nbool work() { return left-- > 0; }\n"
                  "void write() { std::puts(\"written\"); }\nint main() {\nPROGRAM\n}\n")
        with LeaseDaemon(resource("disk-writes", learning_mode_duration="0s")) as daemon:
            ours = re.sub(r'"tcp:[^"]*"', f'"{daemon.lease_address}"', program)
            self.assertEqual(self.outcomes("g++", around, ours, 1), [3 * ["written"]])

    @plays("programs.md", "import socket")
    def test_python(self, text):
        with open_daemon(rule(burst=1)) as daemon:
            program = text.replace("/run/dthrottle", str(daemon.directory))
            program = program.replace("settimeout(0.02)", "settimeout(30)") + "print(served)\n"
            outcomes = [run("python3", "-c", program).stdout.strip() for _ in range(2)]
            self.assertEqual(outcomes, ["True", "False"])

"""What README.md and the guides in docs show is what happens: settings are accepted, commands answer as printed, and the
lines for nginx and Apache throttle. Only paths and ports are changed."""

import re
import shutil
import subprocess

from common import SystemTest
from daemon import BUILD, DTHROTTLED, PATIENCE, ROOT, clean_environment, fresh_directory, rule, run, wait_until
from leases import LeaseDaemon, resource
from test_ask import AskDaemon
from test_http import HttpDaemon
from webserver import APACHE_MODULE, NGINX_MODULE, Apache, Nginx, open_ask_daemon, open_daemon

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TRIES = 5    # of a story whose clients have to be quicker than the rate


def blocks(language, pages=PAGES):
    """The fenced blocks in that language: (page, text)."""
    return [(page.name, text) for page in pages
            for text in re.findall(rf"^```{re.escape(language)}\n(.*?)^```$", page.read_text(), re.M | re.S)]


def blocks_of(language, *names):
    return [text for page, text in blocks(language) if page in names]


def block(language, page):
    texts = blocks_of(language, page)
    if len(texts) != 1:
        raise AssertionError(f"{page} has {len(texts)} blocks in {language}")
    return texts[0]


def examples(text):
    """The commands of a console and what it printed after each."""
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, _, printed = part.partition("\n")
        yield command, printed


def masked(text):
    """Times and levels differ, words do not."""
    return re.sub(r"\d+(\.\d+)?", "N", text).strip()


def shell(command, **options):
    return subprocess.run(["bash", "-c", command], cwd=ROOT, env=clean_environment(), capture_output=True, text=True,
                          timeout=PATIENCE, **options).stdout


class Console(SystemTest):
    def played(self, page, daemon):
        """The commands of the page's consoles on that daemon, but those that start it: (command, printed, answer)."""
        for command, printed in examples(block("console", page)):
            if command == "scripts/run":    # it has been started, see tests of its own
                continue
            ours = (command.replace("/run/dthrottle", str(daemon.directory)).replace("127.0.0.1:7313", daemon.http)
                    .replace("build/dthrottlectl", f"{BUILD}/dthrottlectl --socket {daemon.admin_path}"))
            yield command, printed, shell(ours).replace("\r", "")

    def assert_as_printed(self, page):
        minimal = (ROOT / "conf/minimal.toml").read_text()
        limits = minimal[minimal.index("[[rule]]"):]
        for attempt in range(TRIES):
            with HttpDaemon(limits) as daemon:
                daemon.http = f"127.0.0.1:{daemon.http_port}"
                story = list(self.played(page, daemon))
            if all(masked(printed) == masked(answer) for _, printed, answer in story):
                return self.assertGreater(len(story), 0)
        for command, printed, answer in story:
            self.assertEqual(masked(answer), masked(printed), command)

    def test_the_first_page(self):
        self.assert_as_printed("README.md")

    def test_http(self):
        self.assert_as_printed("programs.md")

    def test_planner_and_simulator(self):
        pages = blocks("console", [ROOT / "docs/planning.md"])
        shown = [example for _, text in pages for example in examples(text)]
        self.assertEqual(len(shown), 2)
        for command, printed in shown:
            answer = shell(command.replace("build/", f"{BUILD}/")).splitlines()
            for line in printed.splitlines():
                self.assertIn(line.rstrip(), [a.rstrip() for a in answer], command)


class Settings(SystemTest):
    def test_every_block_is_accepted(self):
        directory = fresh_directory()
        keys = re.search(r"^dthrottlectl keygen .*$", (ROOT / "docs/sharing.md").read_text(), re.M).group()
        shell(f"mkdir -p {directory}/peers && {BUILD}/" + keys.replace("/etc/dthrottle", str(directory)))
        checked = 0
        for page, text in blocks("toml"):
            path = directory / "settings.toml"
            path.write_text(text.replace("/etc/dthrottle", str(directory)))
            done = run(DTHROTTLED, "--check", path)
            self.assertEqual(done.returncode, 0, f"{page}\n{text}\n{done.stdout}{done.stderr}")
            checked += 1
        self.assertGreater(checked, 5)


class WebServers(SystemTest):
    RULE = '[[rule]]\nname = "login"\nmatch = "login:127.0.0.1"\nburst = 3\nrate = "1/h"\n'

    def assert_throttles(self, server):
        wait_until(lambda: server.get("/login").status in (404, 429), "it is asked")
        self.assertEqual([server.get("/login").status == 429 for _ in range(6)][-2:], [True, True])
        self.assertEqual(server.get("/").status, 200)

    def test_nginx(self):
        load = "load_module modules/ngx_http_dthrottle_module.so;"
        for text in blocks_of("nginx", "README.md", "web-servers.md"):
            main, _, server = text.partition("\n\n") if text.startswith(load) else (load, "", text)
            main = main.replace("modules/ngx_http_dthrottle_module.so", str(NGINX_MODULE))
            with self.subTest(text), open_ask_daemon(self.RULE) as daemon:
                asks = f"dthrottle_server unix:{daemon.query_path}; dthrottle_timeout 30s;"
                with Nginx(server.replace("/run/dthrottle", str(daemon.directory)), http=asks, main=main) as running:
                    self.assert_throttles(running)

    def test_apache(self):
        load = "LoadModule dthrottle_module modules/mod_dthrottle.so\n"
        for text in blocks_of("apache", "README.md", "web-servers.md"):
            text = load + text.replace(load, "")
            text = text.replace("modules/mod_dthrottle.so", str(APACHE_MODULE))
            with self.subTest(text), open_ask_daemon(self.RULE) as daemon:
                text = text.replace("/run/dthrottle", str(daemon.directory))
                with Apache(f"{text}DthrottleServer unix:{daemon.query_path}\nDthrottleTimeout 30000ms\n") as running:
                    self.assert_throttles(running)


PYTHON = {**clean_environment(), "PYTHONPATH": f"{ROOT}/src/integration/python"}


class Frameworks(SystemTest):
    """docs/frameworks.md."""

    asks, limits, leases = [text for page, text in blocks("python") if page == "frameworks.md"]

    def test_python(self):
        with AskDaemon(rule(burst=1)) as daemon:
            program = self.asks.replace("Throttle()", f"Throttle('unix:{daemon.query_path}', deadline=30)") + "print(served)\n"
            outcomes = [run("python3", "-c", program, env=PYTHON).stdout.strip() for _ in range(2)]
            self.assertEqual(outcomes, ["True", "False"])

    def test_node(self):
        directory = fresh_directory()
        (directory / "node_modules").mkdir()
        (directory / "node_modules/dthrottle").symlink_to(ROOT / "src/integration/node")
        program = next(text for page, text in blocks("js") if page == "frameworks.md")
        with AskDaemon(rule(burst=1)) as daemon:
            ours = program.replace("Throttle()", f"Throttle({{ query: 'unix:{daemon.query_path}', deadlineMs: 30000 }})")
            outcomes = [run("node", "-e", ours, cwd=directory).stdout.strip() for _ in range(2)]
            self.assertEqual(outcomes, ["true", "false"])

    def test_ruby(self):
        if shutil.which("ruby") is None:
            self.skipTest("ruby is not installed")
        program = next(text for page, text in blocks("ruby") if page == "frameworks.md")
        with AskDaemon(rule(burst=1)) as daemon:
            ours = program.replace("Throttle.new", f"Throttle.new(query: 'unix:{daemon.query_path}', deadline: 30)")
            outcomes = [run("ruby", "-I", ROOT / "src/integration/ruby/lib", "-e", ours).stdout.strip() for _ in range(2)]
            self.assertEqual(outcomes, ["true", "false"])

    def test_go(self):
        if shutil.which("go") is None:
            self.skipTest("go is not installed")
        directory = fresh_directory()
        module = f"-replace=dthrottle={ROOT}/src/integration/go"
        for words in (("mod", "init", "guide"), ("mod", "edit", "-require=dthrottle@v0.1.0", module)):
            self.assertEqual(run("go", *words, cwd=directory).returncode, 0)
        with AskDaemon(rule(burst=1)) as daemon:
            options = f'Options{{Query: "unix:{daemon.query_path}", Deadline: 30e9}}'
            (directory / "main.go").write_text(block("go", "frameworks.md").replace("Options{}", options))
            outcomes = [run("go", "run", ".", cwd=directory).stdout.strip() for _ in range(2)]
            self.assertEqual(outcomes, ["true", "false"])

    def test_lua_in_nginx(self):
        http, server = block("nginx", "frameworks.md").split("\nserver {\n")
        with open_daemon(rule(burst=3)) as daemon:
            http = (http.replace("/path/to/clone", str(ROOT)).replace(
                "open()", f'open{{ query = "unix:{daemon.query_path}", deadline_ms = 30000, '
                          f'library = "{BUILD}/src/client/libdthrottle.so" }}'))
            modules = "".join(f"load_module /usr/lib/nginx/modules/{name}.so;\n"
                              for name in ("ndk_http_module", "ngx_http_lua_module"))
            with Nginx(server.strip()[:-1], http=http, main=modules, shown="$status $uri") as running:
                self.assertEqual([running.get("/login").status for _ in range(5)], [404, 404, 404, 429, 429])

    def test_flask_limiter(self):
        if run("/usr/bin/python3", "-c", "import flask_limiter").returncode != 0:
            self.skipTest("python3-flask-limiter is not installed")
        (settings,) = [text for page, text in blocks("toml") if page == "frameworks.md" and "[[rule]]" in text]
        around = ("import flask\nfrom flask_limiter import Limiter\nfrom flask_limiter.util import get_remote_address\n"
                  "app = flask.Flask('guide')\n{}app.add_url_rule('/', view_func=lambda: 'served')\nclient = app.test_client()\n"
                  "print([client.get('/').status_code for _ in range(110)].count(200))\n")
        with AskDaemon(settings.replace('rate = "100/m"', 'rate = "100/d"')) as daemon:
            limits = self.limits.replace('"dthrottle://"', f'"dthrottle://{daemon.ask_path}?deadline=30"')
            done = run("/usr/bin/python3", "-c", around.format(limits), env=PYTHON)
            self.assertEqual(done.stdout.strip(), "100", done.stderr)

    def test_leases(self):
        addresses = re.search(r'"(tcp:.*?)"', self.leases)[1]
        with LeaseDaemon(resource("backend-calls", learning_mode_duration="0s")) as daemon:
            around = "left = list(range(5))\ndef work(): return left\ndef call(): print(left.pop())\n"
            done = run("python3", "-c", around + self.leases.replace(addresses, daemon.lease_address), env=PYTHON)
            self.assertEqual(done.stdout.split(), ["4", "3", "2", "1", "0"], done.stderr)


class Programs(SystemTest):
    def test_python(self):
        with open_daemon(rule(burst=1)) as daemon:
            program = block("python", "programs.md").replace("/run/dthrottle", str(daemon.directory))
            program = program.replace("settimeout(0.02)", "settimeout(30)") + "print(served)\n"
            outcomes = [run("python3", "-c", program).stdout.strip() for _ in range(2)]
            self.assertEqual(outcomes, ["True", "False"])

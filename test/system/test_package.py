"""The Debian package: built from this tree, installed for real in a copy of this machine that nobody else sees."""

import json
import pathlib
import re
import shutil
import subprocess
import time
import unittest

from common import SystemTest, report
from daemon import BUILD, ROOT, clean_environment, fresh_directory, wait_until
from guides import plays

SETTINGS = "/etc/dthrottle/dthrottled.toml"
EXAMPLE = "/usr/share/doc/dthrottle/examples/dthrottled.toml"
LINES_MAX = 20    # of settings that nobody asked for
BUILD_SECONDS_MAX = 1800

# Stands in for the service manager, which the copy has not: knows whether the daemon runs, and sends it signals.
SYSTEMCTL = """#!/bin/sh
echo "$@" >>/run/systemctl.log
pid=$(cat /run/daemon.pid 2>/dev/null)
case "$*" in
  "restart nginx") nginx ;;
  *is-active*) [ -n "$pid" ] ;;
  *"kill --kill-who=main --signal=USR2 dthrottled.service"*) kill -USR2 "$pid" ;;
esac
"""


class Copy:
    """This machine as it is, in namespaces: what is written stays in memory, and what runs ends with the `with` block.

    Where the system does not allow that the test is skipped, and says why.
    """

    def __enter__(self):
        self.directory = fresh_directory()
        self.root = self.directory / "root"
        for name in ("upper", "work", "root"):
            (self.directory / name).mkdir()
        mounts = f"""
          cd {self.directory} &&
          mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root &&
          mount -t proc proc root/proc && mount --bind /dev root/dev && mount -t tmpfs tmpfs root/run &&
          mount -t tmpfs tmpfs root/tmp && ip link set lo up && echo ready && exec cat
        """
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation=private", "sh", "-c",
             mounts], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if self._holder.stdout.readline() != "ready\n":
            why = self._holder.communicate()[1].strip()
            shutil.rmtree(self.directory, ignore_errors=True)
            raise unittest.SkipTest(f"NOT TESTED: the package is not installed, for this system mounts no copy: {why}")
        children = pathlib.Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split()
        self._inside = ["nsenter", "--target", children[0], "--mount", "--net", "--pid", "chroot", str(self.root)]
        return self

    def __exit__(self, *_):
        self._holder.communicate()    # cat ends, and everything with it
        shutil.rmtree(self.directory, ignore_errors=True)

    def command(self, *words):
        return [*self._inside, "env", "-u", "XDG_RUNTIME_DIR", "DEBIAN_FRONTEND=noninteractive", *map(str, words)]

    def run(self, *words, status=0, stdin=""):
        done = subprocess.run(self.command(*words), input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=120, cwd="/", env=clean_environment())
        if done.returncode != status:
            raise AssertionError(f"{words} left with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def write(self, path, text, mode=0o644):
        self.run("sh", "-c", 'cat >"$1" && chmod "$2" "$1"', "sh", path, f"{mode:o}", stdin=text)

    def put(self, file):
        """A file of the host, at the root."""
        subprocess.run(self.command("sh", "-c", 'cat >"$1"', "sh", f"/{file.name}"), input=file.read_bytes(),
                       check=True, timeout=120)

    def has(self, path):
        return self.run("sh", "-c", '[ -e "$1" ] && echo yes || echo no', "sh", path) == "yes\n"


def has_all():
    """Whether the build under test is as the packages have it, so that nothing has to be compiled for them."""
    options = {o["name"]: o["value"] for o in json.loads((BUILD / "meson-info/intro-buildoptions.json").read_text())}
    wanted = re.findall(r"-D(\w+)=enabled", (ROOT / "conf/debian/rules").read_text())
    return options["prefix"] == "/usr" and all(options[name] == "enabled" for name in wanted)


def build_package():
    """The .deb of dthrottle, of what the build under test has. Where that lacks something all is compiled, not optimized,
    with nothing for debuggers: what is tested is the packaging."""
    begin = time.monotonic()
    environment = clean_environment(DEB_BUILD_OPTIONS="parallel=2 noopt noautodbgsym", DEB_CFLAGS_APPEND="-g0",
                                    DEB_CXXFLAGS_APPEND="-g0",
                                    DTHROTTLE_PACKAGE_DIR=str(BUILD / "package-test"))
    if has_all():
        environment["DTHROTTLE_BUILT"] = str(BUILD)
    # It computes for minutes, beside tests that look at clocks.
    done = subprocess.run(["nice", "-n", "19", ROOT / "scripts/package", "--lint"], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=BUILD_SECONDS_MAX,
                          env=environment)
    if done.returncode != 0:
        raise AssertionError(f"scripts/package left with {done.returncode}:\n{done.stdout[-4000:]}")
    report(f"scripts/package took {time.monotonic() - begin:.0f} s")
    [deb] = [line for line in done.stdout.splitlines() if re.search(r"/dthrottle_[^/]*\.deb$", line)]
    return ROOT / deb


def as_version(deb, version, directory):
    """The same package as another version, with other documentation, so that there is something to upgrade to."""
    tree = directory / "tree"
    name, before, _ = deb.name.split("_")
    subprocess.run(["dpkg-deb", "--raw-extract", deb, tree], check=True)
    (tree / f"usr/share/doc/{name}/later").write_text("A later version explains more.\n")
    control = tree / "DEBIAN/control"
    text = re.sub(r"(?m)^Version: .*", f"Version: {version}", control.read_text())
    control.write_text(text.replace(f"dthrottle (= {before})", f"dthrottle (= {version})"))
    made = directory / f"{name}_{version}.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, made], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(tree)
    return made


def orders(copy):
    """What the service manager has been told to do with units, in order; forgets it."""
    told = copy.run("sh", "-c", "cat /run/systemctl.log; rm -f /run/systemctl.log").splitlines()
    words = [[word for word in line.split() if not word.startswith("--")] for line in told]
    return [line for line in words if line[0] in ("start", "stop", "restart", "try-restart")]


class Package(SystemTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.deb = build_package()

    def test_everything_is_in_it(self):
        listed = subprocess.run(["dpkg-deb", "--contents", self.deb], capture_output=True, text=True, check=True)
        files = {line.split()[5].removeprefix(".") for line in listed.stdout.splitlines()}
        self.assertLessEqual({
            SETTINGS, EXAMPLE, "/usr/sbin/dthrottled", "/usr/bin/dthrottlectl", "/lib/systemd/system/dthrottled.service",
            "/lib/systemd/system/dthrottled.socket", "/lib/systemd/system/dthrottled-admin.socket",
            "/usr/lib/sysusers.d/dthrottle.conf", "/usr/lib/tmpfiles.d/dthrottle.conf",
            "/usr/share/bash-completion/completions/dthrottled",
            "/usr/bin/dthrottle-sim", "/usr/share/man/man1/dthrottle-sim.1.gz",
            "/usr/share/bash-completion/completions/dthrottle-sim",
            "/usr/share/bash-completion/completions/dthrottlectl", "/usr/share/zsh/vendor-completions/_dthrottled",
            "/usr/share/zsh/vendor-completions/_dthrottlectl", "/usr/share/man/man8/dthrottled.8.gz",
            "/usr/share/man/man1/dthrottlectl.1.gz", "/usr/share/man/man5/dthrottled.toml.5.gz",
            "/usr/share/man/man7/dthrottle-protocol.7.gz"}, files)

    def test_grpc_is_a_package_of_its_own(self):
        [grpc] = self.deb.parent.glob("dthrottle-grpc_*.deb")
        listed = subprocess.run(["dpkg-deb", "--contents", grpc], capture_output=True, text=True, check=True).stdout
        self.assertRegex(listed, r"/usr/libexec/dthrottle/dthrottle-grpc\n")
        depends = subprocess.run(["dpkg-deb", "--field", self.deb, "Depends"], capture_output=True, text=True).stdout
        self.assertNotIn("grpc", depends)

    def test_nats_is_a_package_of_its_own(self):
        [nats] = self.deb.parent.glob("dthrottle-nats_*.deb")
        listed = subprocess.run(["dpkg-deb", "--contents", nats], capture_output=True, text=True, check=True).stdout
        self.assertRegex(listed, r"/usr/libexec/dthrottle/dthrottle-nats.so\n")
        depends = subprocess.run(["dpkg-deb", "--field", self.deb, "Depends"], capture_output=True, text=True).stdout
        self.assertNotIn("nats", depends)

    def test_the_library_brings_the_addon_for_node_to_where_node_looks_for_it(self):
        [library] = self.deb.parent.glob("libdthrottle0_*.deb")
        listed = subprocess.run(["dpkg-deb", "--contents", library], capture_output=True, text=True, check=True).stdout
        looks = subprocess.run(["node", "-p", "require('./src/integration/node/pages').INSTALLED"], cwd=ROOT,
                               capture_output=True, text=True, check=True).stdout
        self.assertIn(f".{looks}", listed)
        depends = subprocess.run(["dpkg-deb", "--field", library, "Depends"], capture_output=True, text=True).stdout
        self.assertNotIn("node", depends)

    def test_the_exporter_to_the_packet_filter_is_a_package_of_its_own(self):
        [nft] = self.deb.parent.glob("dthrottle-nft_*.deb")
        listed = subprocess.run(["dpkg-deb", "--contents", nft], capture_output=True, text=True, check=True).stdout
        for file in ("/usr/sbin/dthrottle-nft", "/lib/systemd/system/dthrottle-nft.service"):
            self.assertIn(f".{file}\n", listed)

    def test_no_rule_is_in_force_that_nobody_wrote(self):
        live = [line for line in (ROOT / "conf/debian/dthrottled.toml").read_text().splitlines()
                if line.strip() and not line.startswith("#")]
        self.assertLessEqual(len(live), LINES_MAX)
        self.assertNotIn("[[rule]]", live)

    def test_web_servers_throttle_with_the_modules_of_their_packages_and_say_for_how_long(self):
        modules = ["libnginx-mod-http-dthrottle", "libapache2-mod-dthrottle"]
        with Copy() as copy:
            files = [self.deb, *(next(self.deb.parent.glob(f"{name}_*.deb")) for name in modules)]
            for file in files:
                copy.put(file)
            copy.run("dpkg", "--install", *(f"/{file.name}" for file in files))
            copy.run("adduser", "--quiet", "www-data", "dthrottle")
            self.add_rule(copy, '[[rule]]\nmatch = "login:*"\nburst = 3\nrate = "1/h"\n')
            self.start(copy)
            ask = "/run/dthrottle/ask.sock"
            copy.write("/etc/nginx/conf.d/limit.conf",
                       f'dthrottle on;\ndthrottle_ask unix:{ask};\ndthrottle_tag "login:nginx";\ndthrottle_timeout 30s;\n')
            copy.write("/etc/apache2/ports.conf", "Listen 8080\n")
            copy.write("/etc/apache2/conf-enabled/limit.conf",
                       f'Dthrottle On\nDthrottleAsk unix:{ask}\nDthrottleTag "login:apache"\nDthrottleTimeout 30000\n')
            copy.run("mkdir", "-p", "/run/lock")
            for command, port in ((["nginx"], 80), (["apache2ctl", "start"], 8080)):
                copy.run(*command)
                ask = f"curl -s -o /dev/null -w '%{{http_code}} %header{{retry-after}}' http://127.0.0.1:{port}/ || true"
                first = wait_until(lambda: not (said := copy.run("sh", "-c", ask)).startswith("000") and said, "it listens")
                answers = [first, *(copy.run("sh", "-c", ask) for _ in range(4))]
                self.assertEqual(answers[:3], 3 * ["200 "], command)
                self.assertEqual(len({answer for answer in answers[3:] if re.fullmatch("429 3[56]..", answer)}), 1, answers)

    @plays("README.md", "scripts/package")
    @plays("web-servers.md", "apt install")
    def test_the_first_429_is_five_commands_away(self, guide, first_page):
        build, *installs = re.sub(r" +#.*", "", first_page).splitlines()
        commands = guide.splitlines()
        self.assertEqual((build, installs), ("scripts/package", commands[:2]))
        self.assertEqual(len(commands), 5)
        with Copy() as copy:
            copy.run("mkdir", "-p", "/build/package", "/run/lock")
            for name in ("dthrottle", "libnginx-mod-http-dthrottle"):
                [file] = self.deb.parent.glob(f"{name}_*.deb")
                copy.put(file)
                copy.run("mv", f"/{file.name}", "/build/package/")
            begin = time.monotonic()
            copy.run("bash", "-c", f"cd / && {commands[0]}")
            self.start(copy)    # which the service manager has done
            copy.write("/usr/bin/systemctl", SYSTEMCTL, 0o755)
            *_, said = [copy.run("bash", "-c", command).split() for command in commands[1:]]
            report(f"5 commands, and {time.monotonic() - begin:.1f} s, from the packages to the first 429")
            self.assertEqual(said[:10], 10 * ["200"])
            # Where the eleven took 2 s or more, or one did not wait for its answer, the 429 is a little later.
            self.assertIn("429", said[10:] + copy.run("bash", "-c", commands[-1]).split())

    def add_rule(self, copy, text):
        """As an operator does, at the end of the settings of the package."""
        copy.write(SETTINGS, copy.run("cat", SETTINGS) + "\n" + text)

    def test_control_names_the_packages_and_the_version_that_the_tree_does(self):
        script = ". scripts/packages.sh; printf '%s\\n' \"${build_packages[@]}\""
        packages = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True).stdout.split()
        control = (ROOT / "conf/debian/control").read_text()
        needed = set(re.findall(r"^ ([a-z0-9+.-]+)", control.partition("Build-Depends:")[2].partition("\n\n")[0],
                                re.M)) - {"debhelper-compat"}
        self.assertEqual(needed, set(packages) - {"catch2"})    # for tests, which the package does not build
        version = re.search(r"version: '(.*)'", (ROOT / "meson.build").read_text())[1]
        self.assertTrue((ROOT / "conf/debian/changelog").read_text().startswith(f"dthrottle ({version}) "))

    def test_it_is_installed_upgraded_under_way_removed_and_purged(self):
        with Copy() as copy:
            newer = as_version(self.deb, "99.0", copy.directory)
            for deb in (self.deb, newer):
                copy.put(deb)
            self.install(copy, self.deb.name)
            pid = self.start(copy)
            self.upgrade(copy, newer.name, pid)
            self.remove(copy, pid)

    def test_what_has_units_of_its_own_is_restarted_by_an_upgrade_and_stopped_by_a_removal(self):
        """Where they were started: systemctl(1) passes over units that do not run."""
        units = {"dthrottle": ["dthrottled.socket", "dthrottled-admin.socket", "dthrottled.service"],
                 "dthrottle-nft": ["dthrottle-nft.service"]}
        with Copy() as copy:
            [nft] = self.deb.parent.glob("dthrottle-nft_*.deb")
            files = [self.deb, nft, *(as_version(deb, "99.0", copy.directory) for deb in (self.deb, nft))]
            for file in files:
                copy.put(file)
            names = [f"/{file.name}" for file in files]
            copy.write("/usr/bin/systemctl", SYSTEMCTL, 0o755)
            copy.run("rm", "-f", "/usr/sbin/policy-rc.d")    # in a container it refuses every order
            copy.run("dpkg", "--install", *names[:2])
            copy.run("mkdir", "-p", "/run/systemd/system")
            copy.run("dpkg", "--install", *names[2:])
            self.assertEqual(orders(copy), [["try-restart", "dthrottle-nft.service"]])
            for package, stopped in reversed(units.items()):
                copy.run("dpkg", "--remove", package)
                told = [unit for verb, *of in orders(copy) for unit in of if verb == "stop"]
                self.assertEqual(told, stopped)

    def install(self, copy, deb):
        self.assertEqual(copy.run("sh", "-c", "getent passwd dthrottle || echo nobody"), "nobody\n")
        copy.run("dpkg", "--install", f"/{deb}")
        user = copy.run("getent", "passwd", "dthrottle").split(":")
        self.assertEqual(user[6], "/usr/sbin/nologin\n")
        self.assertEqual(copy.run("stat", "-c", "%U:%G %a", "/run/dthrottle"), "dthrottle:dthrottle 755\n")
        copy.run("install", "-d", "-o", "dthrottle", "/var/lib/dthrottle")    # as StateDirectory= of the unit does
        copy.write("/var/lib/dthrottle/quotas", "")
        self.assertEqual(copy.run("dpkg-query", "-W", "-f", "${Conffiles}", "dthrottle").split()[0], SETTINGS)
        for unit in ("dthrottled.socket", "dthrottled-admin.socket"):
            self.assertFalse(copy.has(f"/etc/systemd/system/sockets.target.wants/{unit}"))
        self.assertTrue(copy.has("/etc/systemd/system/multi-user.target.wants/dthrottled.service"))
        copy.run("sh", "-c", "man -w dthrottled 2>/dev/null || test -e /usr/share/man/man8/dthrottled.8.gz")

    def start(self, copy):
        """As the unit does it: as its user, on the settings of the package."""
        unit = copy.run("cat", "/lib/systemd/system/dthrottled.service")
        words = re.search(r"(?m)^ExecStart=(.*)", unit)[1].split()
        self.assertEqual(words, ["/usr/sbin/dthrottled", "--config", SETTINGS])
        copy.run("dthrottled", "--check", SETTINGS)
        script = "setsid setpriv --reuid=dthrottle --regid=dthrottle --init-groups \"$@\" >/run/log 2>&1 & echo $!"
        pid = copy.run("sh", "-c", script, "sh", *words).strip()
        wait_until(lambda: " ready: " in copy.run("cat", "/run/log"), "the daemon is ready")
        copy.write("/run/daemon.pid", pid)
        self.assertEqual(copy.run("nc", "-N", "-U", "/run/dthrottle/query.sock", stdin="C\nC\n"), "OK\nOK\n")
        self.assertNotIn("answering queries on tcp:", copy.run("cat", "/run/log"))
        return pid

    def level(self, copy):
        return float(re.search(r"(?m)^level +(\S+)", copy.run("dthrottlectl", "show", "forever"))[1])

    def upgrade(self, copy, deb, pid):
        copy.write(SETTINGS, "[[rule]]\nburst = 100\nrate = 0.00001\n")
        copy.run("dthrottlectl", "reload")
        copy.run("nc", "-N", "-U", "/run/dthrottle/query.sock", stdin="forever\n" * 7)
        copy.write("/usr/bin/systemctl", SYSTEMCTL, 0o755)
        copy.run("mkdir", "-p", "/run/systemd/system")
        with subprocess.Popen(copy.command("nc", "-U", "/run/dthrottle/query.sock"), stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE) as asking:
            asking.stdin.write(b"forever\nfor")
            asking.stdin.flush()
            self.assertEqual(asking.stdout.readline(), b"OK\n")
            copy.run("dpkg", "--install", f"/{deb}")
            wait_until(lambda: copy.run("cat", "/run/log").count(" ready: ") == 2, "the new program has taken over")
            asking.stdin.write(b"ever\n")
            asking.stdin.flush()
            self.assertEqual(asking.stdout.readline(), b"OK\n")
            asking.stdin.close()
        self.assertEqual(copy.run("readlink", f"/proc/{pid}/exe"), "/usr/sbin/dthrottled\n")
        self.assertAlmostEqual(self.level(copy), 91, delta=0.1)
        self.assertIn("burst = 100", copy.run("cat", SETTINGS))
        done = copy.run("cat", "/run/systemctl.log")
        self.assertNotRegex(done, r"(?m)^(--\S+ )*(stop|restart|try-restart) dthrottled.service")

    def remove(self, copy, pid):
        copy.run("kill", pid)
        wait_until(lambda: not copy.has(f"/proc/{pid}/exe"), "the daemon has left")
        copy.run("dpkg", "--remove", "dthrottle")
        self.assertFalse(copy.has("/usr/sbin/dthrottled"))
        self.assertEqual([copy.has(path) for path in (SETTINGS, "/var/lib/dthrottle/quotas")], [True, True])
        copy.run("dpkg", "--purge", "dthrottle")
        left = [path for path in ("/etc/dthrottle", "/run/dthrottle", "/var/lib/dthrottle") if copy.has(path)]
        self.assertEqual(left, [])

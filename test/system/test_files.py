"""Files that the daemon keeps state in: what is not its own is refused at once and stays as it was, and a file that goes
away under it is named in the last line that it writes."""

import os
import resource
import signal
import stat
import subprocess

from common import SystemTest
from daemon import DTHROTTLED, PATIENCE, Daemon, clean_environment, fresh_directory, lines_of, pump, rule, settings_text
from fleet import free_port_pair, make_keys

EX_UNAVAILABLE, EX_OSERR, EX_CONFIG = 69, 71, 78


class Mistaken(SystemTest):
    """A path that is somebody else's."""

    def setUp(self):
        self.directory = fresh_directory()
        self.addCleanup(subprocess.run, ["rm", "-rf", self.directory], check=True)
        make_keys(self.directory, "own")
        make_keys(self.directory, "peer")
        port = free_port_pair()
        self.sections = {"peers": {"name": "own", "bind": f"tcp://127.0.0.1:{port}",
                                   "connect": [f"tcp://127.0.0.1:{port + 2}#peer"],
                                   "key_file": f"{self.directory}/own.key", "authorized_keys": str(self.directory)}}

    def start(self, **options):
        file = self.directory / "dthrottled.toml"
        file.write_text(settings_text(self.directory, rule(share="capacity", rate=1000, burst=1000), **self.sections))
        return subprocess.run([DTHROTTLED, "--config", file], capture_output=True, env=clean_environment(),
                              timeout=PATIENCE,    # a pipe would keep the start waiting for ever
                              **options)

    def make(self, what, path):
        if what == "pipe":
            os.mkfifo(path)
        elif what == "directory":
            path.mkdir()
        elif what == "link":
            (self.directory / "diary").write_text("dear diary\n")
            os.link(self.directory / "diary", path)
        else:
            path.write_text("dear diary\n")

    def test_a_file_of_state_that_is_not_the_daemons_is_refused_at_once_and_stays_whole(self):
        for name in ("table", "table.incarnation", "table.capacity", "table.capacity.incarnation",
                     "table.rules", "table.state"):
            for what, words in (("pipe", "is a pipe"), ("directory", "a directory"), ("diary", "not written by dthrottle"),
                                ("link", "a hard link")):
                with self.subTest(file=name, what=what):
                    path = self.directory / name
                    self.make(what, path)
                    before = path.stat()
                    done = self.start()
                    self.assertIn(done.returncode, (EX_UNAVAILABLE, EX_OSERR), done.stderr.decode())
                    self.assertIn(words, done.stderr.decode().lower())
                    self.assertIn(str(path), done.stderr.decode())
                    self.assertEqual((path.stat().st_ino, path.stat().st_size, stat.S_IFMT(path.stat().st_mode)),
                                     (before.st_ino, before.st_size, stat.S_IFMT(before.st_mode)))
                    subprocess.run(["rm", "-rf", path, self.directory / "diary"], check=True)

    def test_a_key_file_that_is_a_pipe_is_refused_at_once(self):
        path = self.directory / "own.key"
        path.unlink()
        os.mkfifo(path, 0o600)
        done = self.start()
        self.assertEqual(done.returncode, EX_UNAVAILABLE, done.stderr.decode())
        self.assertIn(f"{path}: is not a regular file", done.stderr.decode())

    def test_a_certificate_that_is_a_pipe_is_refused_at_once(self):
        path = self.directory / "tls.crt"
        os.mkfifo(path)
        self.sections["lease"] = {"tls": "127.0.0.1:0"}
        self.sections["tls"] = {"certificate_file": str(path), "key_file": str(path)}
        done = self.start()
        self.assertEqual(done.returncode, EX_CONFIG, done.stderr.decode())
        self.assertIn(f"{path}: is a pipe", done.stderr.decode())

    def test_a_draft_beside_a_file_of_state_stays_whole(self):
        daemon = Daemon(rule(), **self.sections)
        draft = daemon.directory / "table.incarnation.new"
        draft.write_text("my draft\n")
        with daemon:
            self.assertTrue((daemon.directory / "table.incarnation").exists())
            self.assertEqual(draft.read_text(), "my draft\n")

    def test_a_limit_of_file_sizes_is_an_error_and_not_a_death(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        done = self.start(preexec_fn=limit)
        self.assertEqual(done.returncode, EX_OSERR, done.stderr.decode())
        self.assertIn("table: cannot claim its space: File too large", done.stderr.decode())

    def test_a_table_that_there_is_no_room_to_make_longer_stays_as_it_was(self):
        with Daemon(rule(burst=5), table={"memory": "1MiB"}) as daemon:
            self.assertEqual(daemon.served("C", 3), 3)
            daemon.stop()
            table = daemon.directory / "table"
            before = table.read_bytes()
            daemon._sections["table"]["memory"] = "8MiB"
            daemon.write_settings(rule(burst=5))
            done = subprocess.run([DTHROTTLED, "--config", daemon.settings_path], capture_output=True, timeout=PATIENCE,
                                  env=clean_environment(),
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, 4 << 20)))
            self.assertEqual(done.returncode, EX_OSERR, done.stderr.decode())
            self.assertEqual(table.read_bytes(), before)
            daemon.start()
            self.assertIn("new because its size was 1MiB", daemon.log)
            self.assertEqual(daemon.served("C", 9), 5)


class PipesWhileItRuns(SystemTest):
    """A file that is read in a running daemon and has become a pipe, which nobody writes into."""

    def setUp(self):
        port = free_port_pair()
        peers = {"name": "own", "bind": f"tcp://127.0.0.1:{port}", "connect": [f"tcp://127.0.0.1:{port + 2}"]}
        # It must leave as others do.
        self.daemon = self.enterContext(Daemon(rule(burst=5), peers=peers, capacity={"members": ["other", "own"]}))
        self.pipe = self.daemon.directory / "pipe"
        os.mkfifo(self.pipe)

    def tearDown(self):
        self.assertEqual(self.daemon.ask(["C"]), ["OK"])

    def test_the_settings(self):
        os.replace(self.pipe, self.daemon.settings_path)
        self.assertIn("is a pipe", self.daemon.admin("reload"))

    def test_a_candidate(self):
        self.assertIn("is a pipe", self.daemon.admin(f"candidate start 10% {self.pipe}"))

    def test_the_graph(self):
        self.daemon._sections["capacity"].update(graph="file", graph_file=str(self.pipe))
        self.daemon.write_settings(rule(share="capacity"))
        self.assertIn("is a pipe", self.daemon.admin("reload"))


class GoneWhileInUse(SystemTest):
    def test_a_table_that_is_truncated_under_the_daemon_is_named_before_it_dies(self):
        with Daemon(rule(burst=5)) as daemon:
            self.assertEqual(daemon.ask(["C"]), ["OK"])
            os.truncate(daemon.directory / "table", 0)
            with daemon.stream() as stream:
                stream.send(lines_of(f"tag-{i}" for i in range(1000)))
                self.assertTrue(pump([stream], lambda: stream.ended))
            process, daemon.process = daemon.process, None
            self.assertEqual(process.wait(PATIENCE), -signal.SIGBUS)
            daemon.wait_log(f"{daemon.directory}/table: was truncated")

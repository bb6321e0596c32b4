"""What an application's compiler sees of libdthrottle: the header, the manual's example, the pkg-config file."""

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("DTHROTTLE_BUILD", ROOT / "build"))
STRICT = ("-pedantic-errors", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'src/client'}")


def run(*command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120, **options)


def example():
    """The program of the manual, as man prints it."""
    page = run("mandoc", "-Tascii", "-O", "width=160", ROOT / "man/libdthrottle.3").stdout
    page = re.sub(".\b", "", page)
    return page[page.index("#include <dthrottle.h>", page.index("EXAMPLES")):page.index("ERRORS")]


def fragments():
    """What the manual and the guide show of questions about several tags, and of other calls."""
    page = re.sub(".\b", "", run("mandoc", "-Tascii", "-O", "width=160", ROOT / "man/libdthrottle.3").stdout)
    begin = page.index("const dthrottle_tag tags[]")
    yield ("dthrottle *questions = dthrottle_open_ask(NULL, NULL);" +
           page[begin:page.index("refuse(answer.wait_ms);", begin)] + "refuse(answer.wait_ms);")
    yield from re.findall(r"^```c\n(.*?)^```$", (ROOT / "docs/programs.md").read_text(), re.M | re.S)


class ClientHeader(unittest.TestCase):
    def test_the_header_alone_is_c99_and_cxx(self):
        for header, cxx in (("dthrottle.h", "98"), ("dthrottle_lease.h", "11")):
            for command in (("cc", "-std=c99", "-x", "c"), ("c++", f"-std=c++{cxx}", "-x", "c++")):
                done = run(*command, *STRICT, "-fsyntax-only", ROOT / "src/client" / header)
                self.assertEqual((done.returncode, done.stderr), (0, ""), command)

    def test_the_header_for_cxx_is_cxx11(self):
        done = run("c++", "-std=c++11", *STRICT, "-Wno-missing-field-initializers", "-fsyntax-only", "-include",
                   "dthrottle_lease.hpp", "-x", "c++", "/dev/null")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_the_example_of_the_manual_runs(self):
        with tempfile.TemporaryDirectory() as directory:
            source = Path(directory, "example.c")
            source.write_text(example())
            done = run("cc", "-std=c99", *STRICT, source, BUILD / "src/client/libdthrottle.a", "-pthread", "-o",
                       f"{directory}/example")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            done = run(f"{directory}/example", "somebody")
            self.assertEqual(done.returncode, 0)
            # Whether or not a daemon runs on this machine.
            self.assertRegex(done.stdout, r"\Asomebody: (serve|refuse), [a-z ]+\n\Z")

    def test_the_fragments_of_the_manual_and_of_the_guide_compile(self):
        shown = list(fragments())
        self.assertEqual(len(shown), 4)
        for fragment in shown:
            program = f"#include <dthrottle.h>\nvoid refuse();\nint main(void) {{\n{fragment}\nreturn 0;\n}}\n"
            done = subprocess.run(["cc", "-std=c99", *STRICT, "-fsyntax-only", "-x", "c", "-"], input=program,
                                  capture_output=True, text=True, timeout=120)
            self.assertEqual((done.returncode, done.stderr), (0, ""), fragment)

    def test_the_shared_library_gives_away_nothing_but_the_header(self):
        symbols = run("nm", "-D", "--defined-only", BUILD / "src/client/libdthrottle.so").stdout
        declared = set(re.findall(r"DTHROTTLE_API [^;]*?(dthrottle_\w+)\(", "".join(
            (ROOT / "src/client" / header).read_text() for header in ("dthrottle.h", "dthrottle_lease.h"))))
        exported = {line.split()[-1] for line in symbols.splitlines()}
        self.assertEqual(exported, declared )

    def test_pkg_config_knows_it(self):
        where = dict(os.environ, PKG_CONFIG_PATH=str(BUILD / "meson-private"))
        done = run("pkg-config", "--libs", "libdthrottle", env=where)
        self.assertIn("-ldthrottle", done.stdout, done.stderr)


if __name__ == "__main__":
    unittest.main()

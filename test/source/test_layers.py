"""The layers of ARCHITECTURE.md, read from the includes: data flows one way, and only the skin touches the world."""

import re
import tempfile
import unittest
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src"

LAYERS = [
    {"base"},
    {"query", "rule", "bucket", "report", "capacity", "lease", "shed", "config"},
    {"limiter"},
    {"admin"},
    {"io", "frontend", "sim"},
    {"daemon", "ctl", "plan", "client", "integration"},
]

# Within a layer: what a rule asks of a bucket and how it is shed, what settings say of all three, sockets for other
# protocols, files and pictures for the simulator's program, whom a web server and a command ask by, and graphs as the planner reads
# them; resources are matched by
# the globs of rules.
SIDEWAYS = {("rule", "bucket"), ("rule", "shed"), ("lease", "rule"), ("config", "rule"), ("config", "bucket"),
            ("config", "shed"), ("config", "lease"), ("frontend", "io"), ("sim", "io"), ("integration", "client"),
            ("ctl", "client"), ("daemon", "plan")}

# What only io and the programs may use: sockets, loops, clocks, chance.
WORLD = re.compile(
    r"<(uv\.h|zmq\.h|zmq\.hpp|sys/socket\.h|sys/epoll\.h|netinet/.*|ctime|time\.h|random|fstream|unistd\.h|fcntl\.h)>"
    r"|\b(steady_clock|system_clock|clock_gettime|random_device|getenv)\b"
)
INSIDE = {folder for layer in LAYERS[:4] for folder in layer}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"/]+)/[^"]+"', re.M)


def rank(folder):
    return next(i for i, layer in enumerate(LAYERS) if folder in layer)


def faults(src):
    found = []
    for path in sorted(src.rglob("*")):
        if path.suffix not in (".h", ".cc", ".c"):
            continue
        folder = path.relative_to(src).parts[0]
        text = path.read_text()
        for included in INCLUDE.findall(text):
            back = rank(included) > rank(folder)
            aside = rank(included) == rank(folder) and included != folder and (folder, included) not in SIDEWAYS
            if back or aside:
                found.append(f"{path.relative_to(src)} includes {included}/")
        if folder in INSIDE:
            found += [f"{path.relative_to(src)} uses {use.group(0)}" for use in WORLD.finditer(text)]
    return found


class Layers(unittest.TestCase):
    def test_no_include_points_back_and_the_core_owns_no_clock_or_socket(self):
        self.assertEqual(faults(SRC), [])

    def test_every_folder_has_a_layer(self):
        for folder in SRC.iterdir():
            if folder.is_dir():
                rank(folder.name)

    def test_a_fault_would_be_found(self):
        with tempfile.TemporaryDirectory() as folder:
            src = Path(folder)
            for name, text in {
                "base/a.h": '#include "limiter/limiter.h"\n',
                "query/b.h": '#include "rule/rule.h"\n',
                "rule/c.cc": '#include "bucket/bucket.h"\n',
                "bucket/d.cc": "#include <uv.h>\nauto t = std::chrono::steady_clock::now();\n",
                "io/e.cc": '#include <uv.h>\n#include "admin/admin.h"\n',
            }.items():
                (src / name).parent.mkdir(exist_ok=True)
                (src / name).write_text(text)
            self.assertEqual(
                faults(src),
                [
                    "base/a.h includes limiter/",
                    "bucket/d.cc uses <uv.h>",
                    "bucket/d.cc uses steady_clock",
                    "query/b.h includes rule/",
                ],
            )


if __name__ == "__main__":
    unittest.main()

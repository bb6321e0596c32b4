"""The layers of ARCHITECTURE.md, read from the includes: data flows one way, and only the skin touches the world."""

import re
import tempfile
import unittest
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src"

LAYERS = [
    {"base"},
    {"query", "rule", "bucket", "bus", "capacity", "lease", "shed", "tally", "hold", "penalty", "quota"},
    {"share"},
    {"limiter", "config"},
    {"admin"},
    {"io", "frontend", "feature", "carrier", "lab", "tls"},
    {"daemon", "gateway", "ctl", "plan", "client", "integration"},
]

# Within a layer a rule asks its bucket and the priorities of shedding, leases use the globs of rules, penalties and quotas the terms of rules, the daemon's half
# of a setting is read by the limiter, other protocols and the simulator use sockets and files, a web server's module and
# a command ask through the client library, and the daemon reads graphs as the planner does.
SIDEWAYS = {("rule", "bucket"), ("rule", "shed"), ("lease", "rule"), ("tally", "rule"), ("penalty", "rule"), ("quota", "rule"), ("limiter", "config"), ("frontend", "io"), ("feature", "io"), ("carrier", "io"), ("tls", "io"),
            ("lab", "io"), ("integration", "client"), ("ctl", "client"), ("daemon", "plan")}

# Features that go when their folder and the lines of a list that name it are deleted: only the list includes them, and
# names their class.
LISTED = {"share/forecast": "share/ways.h", "share/quota": "share/ways.h"}

# What only io and the programs may use: sockets, loops, clocks, chance.
WORLD = re.compile(
    r"<(uv\.h|zmq\.h|zmq\.hpp|sys/socket\.h|sys/epoll\.h|netinet/.*|ctime|time\.h|random|fstream|unistd\.h|fcntl\.h)>"
    r"|\b(steady_clock|system_clock|clock_gettime|random_device|getenv)\b"
)
INSIDE = {folder for layer in LAYERS[:5] for folder in layer}
# Files of the client library that take `now` and bytes as arguments.
CLIENT_INSIDE = {"answers", "asker", "holding"}
# Folders whose folders are features: each is included by itself and by the files named here, so that it can be removed
# with its line there. gRPC brings its calls to the server of lease lines, and Envoy's to that of questions.
FEATURES = {"frontend": {"frontend/list.cc"}, "feature": {"feature/list.cc", "ctl/main.cc"}, "carrier": {"carrier/list.cc"}}
RESTS_ON = {("frontend/grpc", "frontend/lease"), ("frontend/tls", "frontend/lease"), ("frontend/envoy", "frontend/grpc"), ("frontend/envoy", "frontend/ask"),
            ("frontend/envoy", "frontend/lease")}
FEATURE = re.compile(r'^\s*#\s*include\s+"((?:' + "|".join(FEATURES) + r')/[^"/]+)/[^"]+"', re.M)
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"/]+)/[^"]+"', re.M)


def rank(folder):
    return next(i for i, layer in enumerate(LAYERS) if folder in layer)


def listed_class(src, folder):
    """The class of a listed folder, which stands in the list in front of the folder's name; None: the list has none."""
    found = re.search(rf"\b(\w+)[,>;]+ *// {folder}/", (src / LISTED[folder]).read_text())
    return found and found.group(1)


def sources(src):
    return sorted(path for path in src.rglob("*") if path.suffix in (".h", ".hpp", ".c", ".cc"))


def strangers(src):
    """Uses of a listed folder by anybody but the folder itself and its list."""
    found = []
    classes = {folder: listed_class(src, folder) for folder in LISTED}
    for path in sources(src):
        name, text = str(path.relative_to(src)), path.read_text()
        for folder, by in LISTED.items():
            if name.startswith(folder + "/") or name == by:
                continue
            if f'#include "{folder}/' in text:
                found.append(f"{name} includes {folder}/")
            if classes[folder] and re.search(rf"\b{classes[folder]}\b", re.sub("//.*", "", text)):
                found.append(f"{name} names {classes[folder]}")
    return found


def faults(src):
    found = []
    for path in sources(src):
        folder = path.relative_to(src).parts[0]
        text = path.read_text()
        for included in INCLUDE.findall(text):
            back = rank(included) > rank(folder)
            aside = rank(included) == rank(folder) and included != folder and (folder, included) not in SIDEWAYS
            if back or aside:
                found.append(f"{path.relative_to(src)} includes {included}/")
        own = str(path.relative_to(src).parent)
        for feature in FEATURE.findall(text):
            listed = str(path.relative_to(src)) in FEATURES[feature.split("/")[0]]
            if feature != own and not listed and (own, feature) not in RESTS_ON:
                found.append(f"{path.relative_to(src)} includes {feature}/, which is for its list")
        if folder in INSIDE or (folder == "client" and path.stem in CLIENT_INSIDE):
            found += [f"{path.relative_to(src)} uses {use.group(0)}" for use in WORLD.finditer(text)]
    return found


class Layers(unittest.TestCase):
    def test_no_include_points_back_and_the_core_owns_no_clock_or_socket(self):
        self.assertEqual(faults(SRC), [])

    def test_every_folder_has_a_layer(self):
        for folder in SRC.iterdir():
            if folder.is_dir():
                rank(folder.name)

    def test_a_feature_of_one_folder_is_included_by_its_list_alone(self):
        self.assertEqual(strangers(SRC), [])
        for folder, by in LISTED.items():
            self.assertIn(f'#include "{folder}/', (SRC / by).read_text())
            self.assertTrue(listed_class(SRC, folder))

    def test_a_stranger_would_be_found(self):
        with tempfile.TemporaryDirectory() as folder:
            src = Path(folder)
            for name in ("share/ways.h", "share/forecast/a.cc", "admin/admin.cc"):
                (src / name).parent.mkdir(parents=True, exist_ok=True)
                (src / name).write_text('#include "share/forecast/forecast.h"\n')
            with (src / "share/ways.h").open("a") as ways:
                ways.write("    QuotaSharing>;    // share/quota/: counts\n")
            (src / "admin/b.cc").write_text("ways.Get<QuotaSharing>();    // Forecasting\n")
            self.assertEqual(strangers(src), ["admin/admin.cc includes share/forecast/", "admin/b.cc names QuotaSharing"])

    def test_a_fault_would_be_found(self):
        with tempfile.TemporaryDirectory() as folder:
            src = Path(folder)
            for name, text in {
                "base/a.h": '#include "limiter/limiter.h"\n',
                "query/b.h": '#include "rule/rule.h"\n',
                "rule/c.cc": '#include "bucket/bucket.h"\n',
                "bucket/d.cc": "#include <uv.h>\nauto t = std::chrono::steady_clock::now();\n",
                "client/asker.c": "#include <sys/socket.h>\n",
                "client/endpoint.c": "#include <sys/socket.h>\n",
                "io/e.cc": '#include <uv.h>\n#include "admin/admin.h"\n',
                "frontend/list.cc": '#include "frontend/resp/server.h"\n',
                "frontend/resp/f.cc": '#include "frontend/resp/server.h"\n#include "frontend/frontend.h"\n',
                "frontend/http/g.cc": '#include "frontend/resp/server.h"\n',
            }.items():
                (src / name).parent.mkdir(parents=True, exist_ok=True)
                (src / name).write_text(text)
            self.assertEqual(
                faults(src),
                [
                    "base/a.h includes limiter/",
                    "bucket/d.cc uses <uv.h>",
                    "bucket/d.cc uses steady_clock",
                    "client/asker.c uses <sys/socket.h>",
                    "frontend/http/g.cc includes frontend/resp/, which is for its list",
                    "query/b.h includes rule/",
                ],
            )


if __name__ == "__main__":
    unittest.main()

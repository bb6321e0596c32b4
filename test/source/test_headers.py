"""A file includes what it names. Builds of several sources as one (meson's unity) hide a header that is missing where a
neighbour brings it, so whatever type of the project a file names must be declared in a header that it reaches."""

import re
import tempfile
import unittest
from collections import defaultdict
from pathlib import Path

from test_definitions import NOISE, SRC, definitions

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
ALIAS = re.compile(r"^using (\w+) =", re.M)
# A name in the place of a type: before ::, <, a variable's name, or the end of a template's argument.
NAMED = re.compile(r"(?<![\w.>:])([A-Z]\w+)(?=<|>|::|[&*]+ ?\w|\s+\w+\s*[;,)({=])")


def headers(texts):
    """Where each type of the project is defined."""
    places = defaultdict(set)
    for path, text in texts.items():
        if path.endswith(".h"):
            types = [name.split("::") for name in definitions(text)]
            for name in [parts[1] for parts in types if len(parts) == 2] + ALIAS.findall(text):
                places[name].add(path)
    return places


def reached(path, texts):
    found, left = {path}, [path]
    while left:
        for include in INCLUDE.findall(texts.get(left.pop(), "")):
            if include not in found:
                found.add(include)
                left.append(include)
    return found


def unreached(src):
    texts = {str(path.relative_to(src)): path.read_text() for path in src.rglob("*") if path.suffix in (".h", ".cc")}
    bare = {path: NOISE.sub(" ", text) for path, text in texts.items()}
    places, faults = headers(texts), []
    for path in sorted(texts):
        reach = reached(path, texts)
        for name in sorted(set(NAMED.findall(bare[path])) & places.keys()):
            declared = re.compile(rf"\b(?:class|struct|enum|typename|using)(?:\.\.\.)?\s+{name}\b")
            if not places[name] & reach and not any(declared.search(bare.get(other, "")) for other in reach):
                faults.append(f"{path} names {name} of {', '.join(sorted(places[name]))}")
    return faults


class Headers(unittest.TestCase):
    def test_a_file_includes_what_it_names(self):
        self.assertEqual(unreached(SRC), [])

    def test_a_missing_header_is_found(self):
        with tempfile.TemporaryDirectory() as directory:
            src = Path(directory)
            (src / "part.h").write_text("namespace dthrottle {\nstruct Part {};\nclass Whole;\n}\n")
            (src / "whole.h").write_text("namespace dthrottle {\nclass Whole {};\n}\n")
            (src / "by_way.h").write_text('#include "part.h"\n')
            (src / "good.h").write_text('#include "by_way.h"\nvoid Take(const Part& part, Whole* whole);\n')
            (src / "bad.h").write_text('#include "good.h"\nvoid Put(Part part);\n')
            self.assertEqual(unreached(src), [])
            (src / "by_way.h").write_text("// Part part;\n")
            self.assertEqual(unreached(src), ["bad.h names Part of part.h", "good.h names Part of part.h",
                                              "good.h names Whole of whole.h"])


if __name__ == "__main__":
    unittest.main()

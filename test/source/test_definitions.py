"""One definition of a name. The compiler says nothing when a program links two types of one name, and either may run
with the other's code, so no two files define a type of the same name in the same namespace. Nor do two files say how a
field of one type is written or read (base/fields.h): the templates that call it would be two of one name."""

import re
import tempfile
import unittest
from collections import defaultdict
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src"

# Comments, texts and directives.
NOISE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|^\s*#[^\n]*(?:\\\n[^\n]*)*',
    re.S | re.M)
NAMESPACE = re.compile(r"\bnamespace\s*([\w:]*)\s*$")
PARAMETERS = re.compile(r"\btemplate\s*<[^{};]*?>(?=\s*(?:struct|class|union))")
TYPE = re.compile(
    r"\b(?:struct|class|union|enum(?:\s+(?:class|struct))?)\s+(?:alignas\([^)]*\)\s*)?([\w:]+)\b(?!\s*[<(])[^;()=]*$")


def definitions(text):
    """The types that a file defines in namespaces that other files see, each with its namespace before its name."""
    found, scopes, head = [], [], ""
    for piece in re.split(r"([{};])", NOISE.sub(" ", text)):
        if piece == "{":
            space = NAMESPACE.search(head)
            kind = TYPE.search(PARAMETERS.sub("", head))
            if kind and not space and all(scopes):
                found.append("::".join([*scopes, kind.group(1)]))
            scopes.append(space.group(1) if space else "")    # nothing inside a scope without a name is seen
        elif piece == "}" and scopes:
            scopes.pop()
        head = "" if piece in ("{", "}", ";") else head + piece
    return found


def twice(src):
    places = defaultdict(set)
    for path in src.rglob("*"):
        if path.suffix in (".h", ".cc", ".hpp"):
            for name in definitions(path.read_text()):
                places[name].add(str(path.relative_to(src)))
    return [f"{name}: {', '.join(sorted(files))}" for name, files in sorted(places.items()) if len(files) > 1]


FIELD = re.compile(r"\b(PutField|GetField)\(Pack\w+& \w+, ([\w:<> ]+?)(?:&? \w+)?\)")


def fields_twice(src):
    places = defaultdict(list)
    for path in sorted(src.rglob("*")):
        if path.suffix in (".h", ".cc"):
            for function, kind in FIELD.findall(path.read_text()):
                places[f"{function} {kind.removeprefix('const ')}"].append(str(path.relative_to(src)))
    return [f"{name}: {', '.join(files)}" for name, files in sorted(places.items()) if len(files) > 1]


class Definitions(unittest.TestCase):
    def test_no_field_of_one_type_is_written_in_two_files(self):
        self.assertEqual(fields_twice(SRC), [])

    def test_a_second_way_to_write_a_field_would_be_found(self):
        with tempfile.TemporaryDirectory() as folder:
            src = Path(folder)
            (src / "a.cc").write_text("static void PutField(PackWriter& out, const std::vector<int>& v) {")
            (src / "b.cc").write_text("static void PutField(PackWriter& to, std::vector<int> v) {\n"
                                      "static bool GetField(PackCursor& in, std::vector<int>& v) {")
            self.assertEqual(fields_twice(src), ["PutField std::vector<int>: a.cc, b.cc"])

    def test_no_type_is_defined_in_two_files(self):
        self.assertEqual(twice(SRC), [])

    def test_the_types_of_the_tree_are_seen(self):
        self.assertIn("dthrottle::Table", definitions((SRC / "bucket/table.h").read_text()))

    def test_a_second_definition_would_be_found(self):
        with tempfile.TemporaryDirectory() as folder:
            src = Path(folder)
            for name, text in {
                "io/a.h": "namespace dthrottle { struct Reply { int a; }; class B; namespace { struct Mine {}; } }",
                "frontend/b.h": "namespace dthrottle {\n// struct Mine {\nclass Reply final : Part { struct B {}; }; }",
                "lab/c.cc": "namespace dthrottle::lab { enum class Reply { kA }; namespace { struct Mine {}; } }",
            }.items():
                (src / name).parent.mkdir(parents=True, exist_ok=True)
                (src / name).write_text(text)
            self.assertEqual(twice(src), ["dthrottle::Reply: frontend/b.h, io/a.h"])


if __name__ == "__main__":
    unittest.main()

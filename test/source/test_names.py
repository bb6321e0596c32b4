"""Comments refer to files and members that exist, and a type is defined once."""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for suffix in ("h", "cc", "c", "hpp") for path in (ROOT / "src").rglob(f"*.{suffix}"))


def comments(text):
    """The comments of a file of C or C++, each as (line, text): neighbouring lines of // are one."""
    found, begin, lines = [], 0, []
    for number, line in enumerate(text.splitlines() + [""], 1):
        match = re.search(r'(?:^|\s)(?://+|/\*+|^\s*\*(?!/))\s?(.*?)(?:\*/)?$', line)
        own_line = match is not None and not line[:match.start()].strip()
        if match and lines and own_line:
            lines.append(match.group(1))
            continue
        if lines:
            found.append((begin, " ".join(lines)))
            lines = []
        if match:
            begin, lines = number, [match.group(1)]
    return found


DEFINES = r"\b(?:class|struct|enum class|enum|using|namespace)\s+(?:alignas\(\d+\)\s+)?(\w+)|\b([A-Z]\w+)::\w+\("


def faulty_members(files):
    """Comments' references to members that no file has which defines a type of that name."""
    code = {path: re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S) for path, text in files.items()}
    words = {}    # of a type: all words of the files that define it, or functions of it
    for path, text in code.items():
        for names in set(re.findall(DEFINES, text)):
            for name in filter(None, names):
                words.setdefault(name, set()).update(re.findall(r"\w+", text))
    bad = []
    for path, text in files.items():
        for line, comment in comments(text):
            for name, member in re.findall(r"(?<![\w:])([A-Z]\w+)::(~?\w+)", comment):
                if member not in words.get(name, ()):
                    bad.append(f"{path.relative_to(ROOT)}:{line}: {name}::{member}")
    return sorted(bad)


class References(unittest.TestCase):
    maxDiff = None

    def test_references_to_files_lead_somewhere(self):
        bad = []
        for path in SOURCES:
            for line, text in comments(path.read_text()):
                for name in re.findall(r"(?<![\w/.<])((?:[a-z_]+/)*[a-z_]+\.(?:h|cc|md|py|csv))\b", text):
                    places = (ROOT, ROOT / "src", ROOT / "protocol", Path("/usr/include"), path.parent)
                    if not any((place / name).exists() for place in places):
                        bad.append(f"{path.relative_to(ROOT)}:{line}: {name}")
        self.assertEqual(bad, [])


    def test_references_to_members_lead_somewhere(self):
        """`Type::Member` in a comment: the type is ours, and the member stands where the type is written."""
        self.assertEqual(faulty_members({path: path.read_text() for path in SOURCES}), [])

    def test_a_reference_to_a_member_that_is_gone_would_be_found(self):
        text = "// Type::Kept and Type::Gone, std::min, Foreign::Thing.\nstruct Type {\n  int Kept;\n};\n"
        self.assertEqual(faulty_members({ROOT / "src/a.h": text}), ["src/a.h:1: Foreign::Thing", "src/a.h:1: Type::Gone"])


class Names(unittest.TestCase):
    maxDiff = None

    def test_a_type_is_defined_once(self):
        """Two definitions of one name in a program are undefined behaviour that no tool reports."""
        places = {}
        for path in SOURCES:
            if path.suffix not in (".h", ".cc") or not re.search(r"^namespace dthrottle\b", path.read_text(), re.M):
                continue
            text = re.sub(r"^namespace {\n.*?^}    // namespace\n", "", path.read_text(), flags=re.M | re.S)
            spaces = re.findall(r"^namespace ([\w:]+) {", text, re.M)
            for kind, name in re.findall(r"^(class|struct|enum class) (?:alignas\(\d+\) )?(\w+)(?![\w:])[^;\n]*{", text, re.M):
                places.setdefault("::".join([*spaces, name]), set()).add(str(path.relative_to(ROOT)))
        self.assertGreater(len(places), 300)
        self.assertEqual({name: sorted(files) for name, files in places.items() if len(files) > 1}, {})


if __name__ == "__main__":
    unittest.main()

"""Files and functions of the sources stay small enough to read."""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES_MAX, FUNCTION_LINES_MAX = 600, 60
BEGINS = re.compile(r"(?!namespace|struct|class|enum|extern|typedef)[A-Za-z_].*\{")
# Tables of settings, one entry a key: a function of each would say less.
TABLES = re.compile(r"(Section \w+Section\(\)|const std::vector<Key<\w+>>& \w+Keys\(\)) \{")


def long_functions(text):
    """(line, lines) of each function that begins in the first column and is too long."""
    lines, begin = text.splitlines(), None
    for number, line in enumerate(lines, 1):
        if begin is None and BEGINS.fullmatch(line) and not TABLES.fullmatch(line) and "=" not in line:
            begin = number
        elif begin is not None and line == "}":
            if number - begin - 1 > FUNCTION_LINES_MAX:
                yield begin, number - begin - 1
            begin = None


class Sizes(unittest.TestCase):
    def sources(self):
        for suffix in ("h", "cc", "c"):
            yield from sorted((ROOT / "src").rglob(f"*.{suffix}"))

    def test_files_have_at_most_600_lines(self):
        lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in self.sources()}
        self.assertGreater(len(lines), 500)
        self.assertEqual({path: n for path, n in lines.items() if n > FILE_LINES_MAX}, {})

    def test_functions_have_at_most_60_lines(self):
        found = [f"{path.relative_to(ROOT)}:{line}: {n} lines" for path in self.sources()
                 for line, n in long_functions(path.read_text())]
        self.assertEqual(found, [])

    def test_a_long_function_is_found(self):
        body = "  Step();\n" * (FUNCTION_LINES_MAX + 1)
        self.assertEqual(list(long_functions("int a;\n\nvoid Long(int b) {\n" + body + "}\n")), [(3, FUNCTION_LINES_MAX + 1)])
        self.assertEqual(list(long_functions("void Short() {\n" + body[11:] + "}\n")), [])


if __name__ == "__main__":
    unittest.main()

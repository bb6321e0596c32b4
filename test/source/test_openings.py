"""Plain sentences: one that opens with "Of", "Who", "Whoever" or "Those" hides its subject, and has to be read twice."""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

OPENING = re.compile(r"(?:^|[.:!?] )(?:Of|Who|Whoever|Those)\b(?! [A-Z])")
COMMENT = re.compile(r"//+ ?(.*)|/\*+ ?(.*?)(?:\*/|$)|^ \* ?(.*?)(?:\*/|$)")


def paragraphs_of_code(text):
    """Comments, those of successive lines joined."""
    joined = []
    for line in [*text.splitlines(), ""]:
        found = COMMENT.search(line)
        if found:
            joined.append(next(group for group in found.groups() if group is not None).strip())
        elif joined:
            yield " ".join(joined)
            joined = []


def paragraphs_of_page(text):
    yield from (" ".join(part.split()).lstrip("-*#> ") for part in re.split(r"\n\s*\n|\n(?=[-*|#.] ?)", text))


def openings(root):
    found = []
    for folder in ("src", "test", "protocol", "man", "docs", "conf", "scripts", "."):
        for path in sorted(root.joinpath(folder).glob("*" if folder == "." else "**/*")):
            code = path.suffix in (".h", ".cc", ".c", ".hpp")
            if not path.is_file() or not (code or path.suffix in (".md", ".in", ".1", ".3", ".5", ".7", ".8")):
                continue
            for paragraph in (paragraphs_of_code if code else paragraphs_of_page)(path.read_text()):
                found += [f"{path.relative_to(root)}: {paragraph[at.start():at.start() + 60]}"
                          for at in OPENING.finditer(paragraph)]
    return found


class Openings(unittest.TestCase):
    def test_no_sentence_opens_without_its_subject(self):
        self.assertEqual(openings(ROOT), [])

    def test_an_opening_would_be_found(self):
        self.assertTrue(OPENING.search("Whoever asks, waits."))
        self.assertTrue(OPENING.search("It waits. Of those that fail the first counts."))
        self.assertFalse(OPENING.search("It is one of those who ask."))
        self.assertEqual(list(paragraphs_of_code("int a; // One.\n\n/* Two\n * lines. */\nint b;\n")),
                         ["One.", "Two lines."])


if __name__ == "__main__":
    unittest.main()

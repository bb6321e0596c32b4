"""What README.md and the guides of docs show in fenced blocks, and which tests play them."""

import re
import typing

from daemon import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


class Block(typing.NamedTuple):
    page: str
    language: str
    text: str


BLOCKS = [Block(page.name, *found) for page in PAGES
          for found in re.findall(r"^```([^\n]*)\n(.*?)^```$", page.read_text(), re.M | re.S)]
PLAYED = set()    # blocks


def block(page, beginning):
    """The one block of the page that begins so."""
    found = [b for b in BLOCKS if b.page == page and b.text.lstrip().startswith(beginning)]
    if len(found) != 1:
        raise AssertionError(f"{len(found)} blocks of {page} begin with {beginning!r}")
    return found[0]


def plays(page, *beginnings):
    """For a test that does what these blocks show: it gets their texts. They count as played."""
    played = [block(page, beginning) for beginning in beginnings]
    return _plays(played, *[b.text for b in played])


def plays_all(language, *pages):
    """The same for all blocks in a language, on these pages or on all: a list of (page, text)."""
    played = [b for b in BLOCKS if b.language == language and b.page in (pages or {b.page for b in BLOCKS})]
    return _plays(played, [(b.page, b.text) for b in played])


def _plays(played, *arguments):
    PLAYED.update(played)

    def decorate(test):
        def playing(self, *more):
            return test(self, *arguments, *more)
        playing.__name__ = test.__name__
        return playing
    return decorate


def examples(text):
    """The commands of a console and what it printed after each."""
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, _, printed = part.partition("\n")
        yield command, printed


def masked(text):
    """Times and levels differ, words do not."""
    return re.sub(r"\d+(\.\d+)?", "N", text).strip()

"""`msadapter coverage`: which of PyTorch's public names work on the device, and how that is known.

data.json has the names, how each is exercised and the results; `tests/coverage_checks/collect.py` makes it from the test
suites of a source checkout. Here it becomes a page and a Markdown file.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from . import data, page
from .rows import rows

RUN = ("tests.conformance.run --update", "tests.conformance.run --dtypes --update", "tests.coverage_checks.collect")


def main(argv: list[str] | None = None) -> int:
    options = _parse(argv)
    here = data.in_checkout()
    default = data.ROOT / "docs" / "coverage.html" if here else Path("coverage.html")
    output = Path(options.output) if options.output is not None else default
    if not options.summary:
        _check(output)
    if options.run:
        _run(here)
    results = data.current()
    if here and output == default and not options.summary:
        data.refresh(results)
    found = rows(results)
    if not found:
        raise _usage(f"expected results in {data.FILE}; found none. Reinstall msadapter, or run `msadapter coverage --run`.")
    if options.summary:
        print(page.summary(results, found))
        return 0
    if not here:
        print("The results are those that came with this package: the test suites are in a source checkout only.")
    for path, text in ((output, page.html(results, found)), (output.with_suffix(".md"), page.markdown(results, found))):
        try:
            data.write(path, text)
        except OSError as error:
            raise _usage(f"cannot write {path}: {error.strerror}.") from None
        print(f"wrote {path}")
    return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _usage(f"coverage: {message}. See msadapter coverage --help.")


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="msadapter coverage", description="Write which of PyTorch's public names work on the device.")
    where = "docs/coverage.html in a source checkout, else coverage.html here"
    parser.add_argument("--output", metavar="FILE.html", help=f"the page; the Markdown goes beside it ({where})")
    parser.add_argument("--summary", action="store_true", help="print a paragraph with the totals, write nothing")
    parser.add_argument("--run", action="store_true", help="first run the test suites of this source checkout again (hours)")
    return parser.parse_args(argv)


def _check(output: Path) -> None:
    if output.suffix != ".html":
        raise _usage(f"expected --output with a name that ends in .html; received {str(output)!r}.")
    if not output.parent.is_dir():
        raise _usage(f"expected a directory to write to; found none named {str(output.parent)!r}.")
    if output.is_dir():
        raise _usage(f"expected a file to write; {str(output)!r} is a directory.")


def _run(here: bool) -> None:
    if not here:
        raise _usage("expected a source checkout for --run: tests/conformance is not part of the installed package.")
    for command in RUN:
        if subprocess.run([sys.executable, "-m", *command.split()], cwd=data.ROOT).returncode:
            raise _usage(f"`python -m {command}` failed; nothing is written.")


def _usage(message: str) -> Exception:
    from ..cli import UsageError

    return UsageError(message)

"""Reads the reports of test runners, and formats totals, reasons for skipped tests, causes of
failures, and one line with the failed tests."""
import ast
import os
import xml.etree.ElementTree

# Characters of each end of a long cause that are shown.
CAUSE_END = 400


class Results:
    """Tests by outcome. `failed` contains names, `causes` the messages of some of them by name, and
    `skipped` pairs of a name and the reason."""

    def __init__(self):
        self.passed, self.failed, self.causes, self.skipped = 0, [], {}, []

    def add(self, other):
        """Adds the tests of other results."""
        self.passed += other.passed
        self.failed += other.failed
        self.causes.update(other.causes)
        self.skipped += other.skipped

    def read(self, report, name):
        """Counts the tests of a JUnit report; `name` returns a test's name from its class and its
        own name.

        Raises OSError or ParseError if there is no complete report.
        """
        for case in xml.etree.ElementTree.parse(report).iter("testcase"):
            test = name(case.get("classname", ""), case.get("name", ""))
            failures = [*case.findall("failure"), *case.findall("error")]
            skipped = case.find("skipped")
            if failures:
                self.failed.append(test)
                self.causes[test] = cause(failures[0])
            elif skipped is not None:
                self.skipped.append((test, reason(skipped)))
            else:
                self.passed += 1
        return self

    def reasons(self):
        """Returns a line for each reason for which tests were skipped, with their number."""
        numbers = {}
        for _, reason in self.skipped:
            numbers[reason] = numbers.get(reason, 0) + 1
        return ["%d skipped: %s" % (number, reason) for reason, number in sorted(numbers.items())]

    def explanations(self):
        """Returns a line for each failed test whose cause is known, with both ends of the cause."""
        return ["%s: %s" % (name, shortened(self.causes[name])) for name in self.failed if self.causes.get(name)]

    def total(self):
        """Returns the last line of a run, which CI reads."""
        return "%d passed, %d failed, %d skipped" % (self.passed, len(self.failed), len(self.skipped))


def cause(failure):
    """Returns the cause of a failure in one line. The message in nextest's reports only names the
    place of a panic."""
    message, text = failure.get("message") or "", failure.text or ""
    chosen = text.split("stack backtrace:")[0] if not message or "panicked at" in message else message
    return " ".join(chosen.split())


def shortened(text):
    """Returns the text, without its middle if it is long."""
    return text if len(text) <= 2 * CAUSE_END else text[:CAUSE_END] + " [...] " + text[-CAUSE_END:]


def reason(skipped):
    """Returns the reason for which a test was skipped. For a whole module, pytest writes a Python
    tuple of a file, a line, and the reason."""
    message = skipped.get("message") or "no reason is given"
    if message == "collection skipped":
        message = ast.literal_eval(skipped.text)[2].removeprefix("Skipped: ")
    return message


def failures(failed, repeat):
    """Returns the line that lists the failed tests, with a command that repeats one of them."""
    return "failed: %s; to repeat one: %s" % (", ".join(failed), repeat)


def pytest_name(module):
    """Returns a function that maps a class and a name in a report of this module (a path) to
    pytest's name of a test.

    These modules have no test classes. The report of a module that cannot be imported contains only
    the module.
    """
    def name(_class, test):
        whole = test in ("", os.path.splitext(module)[0].replace(os.sep, "."))
        return module if whole else "%s::%s" % (module, test)

    return name


def pytest_names(folder):
    """Returns a function like that of `pytest_name`, for a report of all modules in a directory."""
    def name(of, test):
        return "%s/%s.py::%s" % (folder, of.split(".")[-1], test) if of else test

    return name

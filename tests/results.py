"""What test runners write down of their tests, and how it is told: totals, reasons, and one line with what failed."""
import ast
import os
import xml.etree.ElementTree


class Results:
    """Tests by how they ended. `failed` has names, `skipped` pairs of a name and the reason."""

    def __init__(self):
        self.passed, self.failed, self.skipped = 0, [], []

    def add(self, other):
        """Counts the tests of other results, too."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def read(self, report, name):
        """Counts the tests of a report in the form of JUnit; `name` makes a test's name of its class and its own.

        Raises OSError or ParseError where there is no whole report.
        """
        for case in xml.etree.ElementTree.parse(report).iter("testcase"):
            called = name(case.get("classname", ""), case.get("name", ""))
            skipped = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                self.failed.append(called)
            elif skipped is not None:
                self.skipped.append((called, reason(skipped)))
            else:
                self.passed += 1
        return self

    def reasons(self):
        """A line for each reason for which tests were skipped, with their number."""
        numbers = {}
        for _, reason in self.skipped:
            numbers[reason] = numbers.get(reason, 0) + 1
        return ["%d skipped: %s" % (number, reason) for reason, number in sorted(numbers.items())]

    def total(self):
        """The closing line of a run; CI reads it."""
        return "%d passed, %d failed, %d skipped" % (self.passed, len(self.failed), len(self.skipped))


def reason(skipped):
    """Returns why a test was skipped. Of a whole module pytest writes a file, a line, and the reason, as a tuple of Python."""
    message = skipped.get("message") or "no reason is given"
    if message == "collection skipped":
        message = ast.literal_eval(skipped.text)[2].removeprefix("Skipped: ")
    return message


def failures(failed, repeat):
    """The one line that says which tests failed, and by which command one of them is repeated."""
    return "failed: %s; to repeat one: %s" % (", ".join(failed), repeat)


def pytest_name(module):
    """Returns what makes pytest's name of a test of a class and a name in a report of this module, a path.

    These modules have no classes of tests. Of one that cannot be imported the report has the module alone.
    """
    def name(_class, test):
        whole = test in ("", os.path.splitext(module)[0].replace(os.sep, "."))
        return module if whole else "%s::%s" % (module, test)

    return name


def pytest_names(folder):
    """Returns the same for a report of all modules in a folder."""
    def name(of, test):
        return "%s/%s.py::%s" % (folder, of.split(".")[-1], test) if of else test

    return name

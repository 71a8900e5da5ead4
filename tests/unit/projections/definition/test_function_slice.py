"""What a function needs of its module tells it from another, and makes the same when it is run."""

from __future__ import annotations

import ast
import sys
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.definition.derived.function_source import (
    MADE,
    FunctionSlice,
    UnresolvablePartError,
    digest_of,
    sliced,
)
from tests.fix_seeds import examples


def slice_of(text: str, name: str = "made") -> FunctionSlice:
    """The slice of the function that a module calls so."""
    (node,) = [
        each
        for each in ast.parse(text).body
        if isinstance(each, ast.FunctionDef) and each.name == name
    ]
    return sliced(text, name, min([node.lineno, *(d.lineno for d in node.decorator_list)]))


def run(text: str) -> dict[str, Any]:
    module = ModuleType("views")
    sys.modules["views"] = module
    try:
        exec(text, module.__dict__)  # noqa: S102
    finally:
        del sys.modules["views"]
    return module.__dict__


SHAPES = {
    "alone": "def made(x):\n    return x + 1\n",
    "a constant": "RATE = 3\n\ndef made(x):\n    return x * RATE\n",
    "bound again later": "RATE = 3\ndef made(x):\n    return x * RATE\nRATE = 5\n",
    "counted up": "RATE = 3\nRATE += 4\ndef made(x):\n    return x * RATE\n",
    "of others, from one to the next": (
        "BASE = 2\nRATE = BASE ** 5\ndef made(x):\n    return twice(x) + RATE\n"
        "def twice(x):\n    return 2 * once(x)\ndef once(x):\n    return x - BASE\n"
    ),
    "imports": (
        "import math, json\nfrom functools import partial, reduce as fold\n"
        "def made(x):\n    return fold(max, [x, 3]) + math.floor(2.5)\n"
    ),
    "a part of a package": (
        "import os.path\nimport os\ndef made(x):\n    return os.path.join('a', str(x))\n"
    ),
    "a try": (
        "try:\n    import nothing_of_this_name as tool\nexcept ImportError:\n    tool = None\n"
        "def made(x):\n    return (tool is None, x)\n"
    ),
    "an if": (
        "import sys\nif sys.version_info > (3,):\n    RATE = 3\nelse:\n    RATE = 4\n"
        "def made(x):\n    return x * RATE\n"
    ),
    "only for types": (
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from nowhere import Frame\n"
        "def made(x: Frame) -> Frame:\n    return x\n"
    ),
    "a loop": "for n in range(4):\n    LAST = n\ndef made(x):\n    return x + LAST + n\n",
    "a with": (
        "from contextlib import nullcontext\nwith nullcontext(7) as RATE:\n    pass\n"
        "def made(x):\n    return x + RATE\n"
    ),
    "a default": "STEP = 4\ndef made(x, step=STEP):\n    return x + step\nSTEP = 5\n",
    "a lambda": "RATE = 2\ntimes = lambda x: x * RATE\ndef made(x):\n    return times(x)\n",
    "a function within": (
        "RATE = 2\ndef made(x):\n    def inner(y):\n        return y * RATE\n    return inner(x)\n"
    ),
    "comprehensions": (
        "STEPS = [1, 2]\ndef made(x):\n    return [s * x for s in STEPS if (t := s) > 1] + [t]\n"
    ),
    "a class": (
        "from dataclasses import dataclass\nWIDTH = 3\n"
        "@dataclass\nclass Box:\n    size: int = WIDTH\n    double = WIDTH\n    more = double\n"
        "    def times(self, x):\n        return self.size * x * self.more\n"
        "def made(x):\n    return Box().times(x)\n"
    ),
    "a decorated helper": (
        "from functools import wraps\n"
        "def plus(n):\n    def around(f):\n        @wraps(f)\n        def g(x):\n"
        "            return f(x) + n\n        return g\n    return around\n"
        "@plus(3)\ndef helper(x):\n    return x\ndef made(x):\n    return helper(x)\n"
    ),
    "a list that is filled": (
        "NAMES = []\nNAMES.append(3)\nNAMES += [4]\nNAMES[0] = 5\n"
        "def made(x):\n    return [*NAMES, x]\n"
    ),
    "a list that is filled by another": (
        "NAMES = []\ndef fill(names):\n    names.append(1)\n"
        "fill(NAMES)\nnothing = fill(names=NAMES)\n"
        "def made(x):\n    return [*NAMES, x]\n"
    ),
    "a list by another name": (
        "NAMES = []\nmine, spare = NAMES, 1\nmine.append(1)\nmine += [2]\n"
        "def made(x):\n    return [*NAMES, x]\n"
    ),
    "a list that is taken from": (
        "NAMES = [1, 2]\nlast = NAMES.pop()\ndef made(x):\n    return [*NAMES, x]\n"
    ),
    "one of several": (
        "from functools import singledispatch\n@singledispatch\ndef kind(x):\n    return 'any'\n"
        "@kind.register\ndef _(x: int):\n    return 'number'\ndef made(x):\n    return kind(x)\n"
    ),
    "an attribute": "def helper(x):\n    return x + helper.rate\nhelper.rate = 4\n"
    "def made(x):\n    return helper(x)\n",
    "unpacked": "A, (B, *C) = 1, (2, 3, 4)\ndef made(x):\n    return [A, B, *C, x]\n",
    "deleted": "A = 1\nB = A\ndel A\nA = 7\ndef made(x):\n    return A + x\n",
    "a line of two": "A = 1; B = 2\ndef made(x):\n    return x + B\n",
    "texts of several lines": (
        'TEXT = """a\n  # no comment\n  b"""\ndef made(x):\n    return f"{TEXT}{x!r:>4}{\'q\'}"\n'
    ),
    "letters beyond ASCII": "GRÖSSE = 'é' ; B = 2\ndef made(x):\n    return GRÖSSE + str(x + B)\n",
    "a match": (
        "match (1, 2):\n    case (a, b):\n        SUM = a + b\ndef made(x):\n    return SUM + x\n"
    ),
    "its own name for a builtin": "def len(x):\n    return 9\ndef made(x):\n    return len([x])\n",
    "a parameter like a name of the module": (
        "from projections.definition import mirror as declaration\norders = declaration.source\n"
        "def made(orders):\n    return orders\n"
    ),
}


@pytest.mark.parametrize("text", SHAPES.values(), ids=SHAPES)
def test_a_slice_makes_what_the_function_makes_in_its_module(text: str) -> None:
    whole, part = run(text), run(slice_of(text).text)

    for given_ in (-1, 0, 3):
        assert whole["made"](given_) == part[MADE](given_)


ELSEWHERE = [
    "import decimal\n",
    "OTHER = 1\n",
    "def other(x):\n    return OTHER_YET * x\n",
    "@decorated\ndef other(x):\n    return x\n",
    "class Other:\n    rows = []\n",
    "# a comment\n",
    '"""Words about it."""\n',
    "view.sql('more', 'SELECT 1 AS one FROM orders', keys=['one'])\n",
    "print('declared')\n",
    "for status in ['paid']:\n    view.sql(status, f'SELECT {status} FROM orders')\n",
    "if __name__ == '__main__':\n    main()\n",
]


@given(
    shape=st.sampled_from(sorted(SHAPES)), edits=st.lists(st.sampled_from(ELSEWHERE), max_size=4)
)
def test_an_edit_elsewhere_is_no_change(shape: str, edits: list[str]) -> None:
    text = SHAPES[shape]
    future = text.startswith("from __future__")
    changed = (text if future else "from headwater import view\n" + text) + "\n".join(edits)

    assert slice_of(text).digest == slice_of(changed).digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def made(x):\n    return x+1", "def made( x ):  # adds\n\n    return (x + 1)\n"),
        ("def made(x):\n    return x", 'def made(x):\n    """Returns it."""\n    return x'),
        ("def made(x):\n    return 'a'", 'def made(x):\n    return "a"'),
        (
            "import a, b\ndef made(x):\n    return a",
            "from c import d\nimport a\ndef made(x):\n    return a",
        ),
        (
            "from a import b\ndef made(x):\n    return b",
            "from a import (\n    b,\n    c,\n)\ndef made(x):\n    return b",
        ),
        (
            "@view(keys=['a'])\ndef made(x):\n    return x",
            "@view('m', keys=['b'])\n@expect('c')\ndef made(x):\n    return x",
        ),
    ],
    ids=["layout", "docstring", "quotes", "imports", "names of an import", "decorators"],
)  # fmt: skip
def test_what_python_does_not_read_is_no_change(one: str, other: str) -> None:
    assert slice_of(one).digest == slice_of(other).digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def made(x):\n    return x + 1", "def made(x):\n    return x + 2"),
        ("def made(x):\n    return 1", "def made(x):\n    return 1.0"),
        ("def made(x):\n    return 1", "def made(x):\n    return True"),
        ("def made(x):\n    return ')'", "def made(x):\n    return '))'"),
        ("def made(x, y):\n    return x", "def made(y, x):\n    return x"),
        ("A = 1\ndef made(x):\n    return A", "A = 2\ndef made(x):\n    return A"),
        ("A = 1\ndef made(x):\n    return A", "A = 1\ndef made(x):\n    return A\nA = 2"),
        ("A = []\ndef made(x):\n    return A", "A = []\ndef made(x):\n    return A\nA.append(1)"),
        (
            "from a import c\ndef made(x):\n    return c",
            "from b import c\ndef made(x):\n    return c",
        ),
        (
            "def made(x):\n    return h(x)\ndef h(x):\n    return x",
            "def made(x):\n    return h(x)\ndef h(x):\n    return -x",
        ),
        (
            "def made(x):\n    '''A'''\n    return h.__doc__\ndef h():\n    '''B'''",
            "def made(x):\n    '''A'''\n    return h.__doc__\ndef h():\n    '''C'''",
        ),
    ],
)  # fmt: skip
def test_another_function_is_told_apart(one: str, other: str) -> None:
    assert slice_of(one).digest != slice_of(other).digest


UNTOLD = {
    "from helpers import *\ndef made(x):\n    return x\n": "import \\*",
    "globals()['A'] = 1\ndef made(x):\n    return x\n": r"globals\(\)",
    "exec('A = 1')\nA = 2\ndef made(x):\n    return A\n": r"exec\(\)",
    "import sys\nsys.modules[__name__].A = 1\nA = 0\ndef made(x):\n    return A\n": "sys.modules",
    "def made(x):\n    return here(x)\n": "definition of here cannot",
    "def made(x):\n    return open(__file__)\n": "definition of __file__ cannot",
    "from pathlib import Path\nHERE = Path(__file__)\ndef made(x):\n    return HERE\n": "__file__",
    "A = 1\ndef change():\n    global A\n    A = 2\nchange()\ndef made(x):\n    return A\n": (
        "a function of its module changes A"
    ),
    "A = {}\ndef put(f):\n    A[1] = f\n    return f\n@put\ndef one(x):\n    return x\n"
    "def made(x):\n    return A[1](x)\n": "a function of its module changes A",
    "A = []\ndef put(f):\n    A.append(f)\n    return f\n@put\ndef one(x):\n    return x\n"
    "def made(x):\n    return A\n": "a function of its module changes A",
    "from headwater import view\n@view(keys=['a'])\ndef made(x):\n    return made.keys\n": (
        "reads made"
    ),
    "from headwater import view\norders = view.mirror('orders', 1)\n"
    "def made(x):\n    return orders.keys\n": "a declaring function: view",
    "import headwater as hw\n@hw.event('a')\nclass A:\n    pass\ndef made(x):\n    return A\n": (
        "a declaring function: hw"
    ),
}


@pytest.mark.parametrize(("text", "why"), UNTOLD.items())
def test_nobody_guesses_what_cannot_be_told(text: str, why: str) -> None:
    with pytest.raises(UnresolvablePartError, match=why):
        slice_of(text)


def test_a_function_that_does_not_stand_at_the_top_cannot_be_told() -> None:
    text = "if True:\n    def made(x):\n        return x\n"
    with pytest.raises(UnresolvablePartError, match="not defined at the top level"):
        sliced(text, "made", 2)
    with pytest.raises(UnresolvablePartError, match="cannot be read"):
        sliced("def made(x)", "made", 1)


def test_of_two_functions_of_one_name_each_is_its_own() -> None:
    text = "def made(x):\n    return 1\ndef made(x):\n    return 2\n"

    first, second = (run(sliced(text, "made", line).text)[MADE] for line in (1, 3))

    assert (1, 2) == (first(0), second(0))


def test_words_of_ours_that_are_given_a_list_do_not_change_it() -> None:
    text = "KEYS = ['a']\ndef made(x):\n    return KEYS\n"
    words = "from headwater import view\nview.mirror('a', 1, keys=KEYS)\nprint(sorted(KEYS))\n"
    joined = "view.sql('a', ', '.join(KEYS), keys=list(KEYS))\n"

    assert slice_of(text).digest == slice_of(text + words + joined).digest


def test_a_function_of_a_library_is_not_taken_for_what_changes_it() -> None:
    text = (
        "from json import decoder as F\n"
        "def made(x):\n    return F.reverse(x)\n"
        "def other(x):\n    return F.update(x)\n"
        "@F.udf('int')\ndef unneeded(x):\n    return x\n"
    )

    assert "unneeded" not in slice_of(text).text


def test_a_long_chain_of_calls_is_told() -> None:
    chain = "x" + "".join(f"\n        .step({n})" for n in range(900))
    found = slice_of(f"def made(x):\n    return (\n        {chain}\n    )\n")

    assert found.digest == digest_of(found.text)


NAMES = ("A", "B", "C", "D")
a_name = st.sampled_from(NAMES)
a_number = st.integers(0, 9)
statements = st.one_of(
    st.builds("{} = [{}]\n".format, a_name, a_number),
    st.builds("{} = {} + [{}]\n".format, a_name, a_name, a_number),
    st.builds("{} = list({})\n".format, a_name, a_name),
    st.builds("{} = {}\n".format, a_name, a_name),
    st.builds("{} += {}\n".format, a_name, a_name),
    st.builds("{}.append({})\n".format, a_name, a_number),
    st.builds("last = {0}.pop() if {0} else {1}\n".format, a_name, a_number),
    st.builds("{}[:1] = {}\n".format, a_name, a_name),
    st.builds("def f{}():\n    return {} + [{}]\n".format, a_number, a_name, a_number),
    st.builds(
        "def f{}():\n    A = []\n    A.append({})\n    return A\n".format, a_number, a_number
    ),
    st.builds("{} = f{}()\n".format, a_name, a_number),
    st.builds("def put(x):\n    x.insert(0, {})\n".format, a_number),
    st.builds("put({})\n".format, a_name),
    st.builds("for n in range({}):\n    {}.append(n)\n".format, a_number, a_name),
    st.builds("if {}:\n    {} = [{}]\n".format, a_name, a_name, a_number),
)  # fmt: skip
BEGUN = "A = [1]\nB = [2]\nC = [3]\nD = [4]\ndef put(x):\n    x.append(0)\n" + "".join(
    f"def f{n}():\n    return [{n}]\n" for n in range(10)
)


@settings(max_examples=examples(150))
@given(
    before=st.lists(statements, max_size=8),
    after=st.lists(statements, max_size=8),
    needs=st.lists(st.one_of(a_name, st.builds("f{}()".format, a_number)), min_size=1, max_size=3),
)
def test_whatever_a_module_does_a_slice_makes_what_the_function_makes_there(
    before: list[str], after: list[str], needs: list[str]
) -> None:
    made = f"def made(x):\n    return ({', '.join(needs)}, x)\n"
    text = BEGUN + "".join(before) + made + "".join(after)
    part = slice_of(text)

    assert run(text)["made"](1) == run(part.text)[MADE](1)
    assert part.digest == digest_of(part.text)


def test_a_digest_is_the_same_in_every_release_of_python() -> None:
    found = slice_of(SHAPES["a class"])

    assert "4ebea4a3d1116db1" == found.digest[:16]

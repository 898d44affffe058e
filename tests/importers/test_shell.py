"""Launch scripts are read as Bash would read them, and never run."""

from __future__ import annotations

import subprocess

import pytest

from simulator.errors import InputError
from simulator.importers.shell.launch_script import read_script

SCRIPTS = {
    "quotes": """A='x  y'; B="$A z"; show "$A" $A "$B" '$A' \\$A a"b"c""",
    "arithmetic": "N=8; M=$((N * 2 / 3 % 4)); show $M $(($N*$M)) $((64/N)) $(( ${N} - 10 ))",
    "defaults": "A=1; E=; show ${A:-2} ${B:-3} ${E:-4} ${E-5} ${C:=6} ${A:+7} ${D:+8}",
    "arrays": "A=(--x 1 'a b' # no\n --y); A+=(--z); show ${A[@]} end; show \"${A[@]}\" ${A[1]}",
    "continued lines": "show --a 1 \\\n  --b 2 \\\n  --c",
    "strings grow": 'A="--a"; A=" --b $A"; A+=" --c"; show $A',
    "if": "A=2\nif [ $A -eq 1 ]; then B=x; elif [[ $A == 2 ]]; then B=y; else B=z; fi\nshow $B",
    "if or": 'A=1\nif [ "$A" = 2 ] || [ -z "$N" ]\nthen\n B=x\nelse\n B=y\nfi\nshow $B',
    "if and": 'A=1\nif [[ $A == 1 && -n "$N" ]]; then B=x; else B=y; fi; show $B',
    "nested": "A=1\nif [ $A = 2 ]; then\n if [ $A = 1 ]; then B=x; fi\nelse\n B=y\nfi\nshow $B",
    "negated": "A=1; if [ ! $A = 2 ]; then B=x; fi; show $B",
    "case": "A=7b\ncase $A in\n 1b|2b) B=x;;\n 7b|8b)\n  B=y\n  ;;\n *) B=z;;\nesac\nshow $B",
    "case else": "A=9b\ncase $A in\n 1b|2b) B=x ;;\n *)\n  B=z ;;\nesac\nshow $B",
    "chains": "A=1; [ $A = 1 ] && B=x; [ $A = 2 ] && B=y; [ $A = 2 ] || C=z; show $B $C",
    "comments": "# no\nA=1 # no\nshow a#b $A '#c' # no",
    "exports": "export A=1 B=2\nshow $A$B ${A}b",
    "empty words": 'A=""; show a $A b',
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_words_are_those_that_bash_hands_over(name):
    script = SCRIPTS[name]
    show = "show() { printf '<%s>' \"$@\"; echo; }\n"
    done = subprocess.run(
        ["bash", "-c", show + script], capture_output=True, text=True, check=True, env={}
    )
    read = [words[1:] for words in read_script(script, {}).commands if words[0] == "show"]
    assert ["".join(f"<{word}>" for word in words) for words in read] == done.stdout.splitlines()


def test_here_documents_are_kept_by_file_with_their_values():
    script = 'N=3\ncat <<EOT > out_$N.json\n{"stage": $N, "x": "a"}\nEOT\nshow'
    assert read_script(script, {}).documents == {"out_3.json": '{"stage": 3, "x": "a"}'}


def test_what_is_unknown_stays_as_it_is_written():
    assert read_script("show $A ${B} $(date) $1", {}).commands == [
        ["show", "$A", "${B}", "$(date)", "$1"]
    ]


def test_a_definition_counts_before_an_assignment():
    assert read_script("A=1\nshow $A", {"A": "2"}).commands == [["show", "2"]]


def test_an_undecided_condition_is_false_and_told():
    script = read_script("B=1\nif [ ! -f x ]; then B=2; fi\nshow $B", {})
    assert script.commands == [["show", "1"]]
    assert script.notes == ["the condition (! -f x) is taken to be false"]


@pytest.mark.parametrize("text", ["A='open", 'A="open', "A=(open", "show $(open"])
def test_an_open_quote_or_bracket_is_an_error_with_its_line(text):
    with pytest.raises(InputError, match="of line 2 is never closed"):
        read_script(f"show\n{text}", {})


def test_variables_cannot_grow_without_bound():
    with pytest.raises(InputError, match="grows to more than"):
        read_script("A=xxxxxxxx\n" + "A=$A$A\n" * 60, {})

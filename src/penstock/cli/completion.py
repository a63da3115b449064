"""`penstock completion`: scripts for bash, zsh and fish, made from the tables of the commands."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator

from penstock.cli.arguments import Argument, Verb, argument
from penstock.cli.commands import COMMANDS, path_of, verbs_of

BASH = """\
# Completion of `penstock` for bash; load it with: source <(penstock completion bash)
_penstock() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} path="" each
    for each in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        [[ $each == -* ]] || path="${{path:+$path }}$each"
        case "$path" in {paths}) break ;; esac
    done
    local words=""
    case "$path" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    [[ $word == -* ]] || COMPREPLY+=($(compgen -f -- "$word"))
}}
complete -o filenames -F _penstock penstock
"""
ZSH = """\
#compdef penstock
# Completion of `penstock` for zsh; load it with: source <(penstock completion zsh)
_penstock() {{
    local path="" each
    local -a found
    for each in ${{words[2,CURRENT-1]}}; do
        [[ $each == -* ]] || path="${{path:+$path }}$each"
        case "$path" in {paths}) break ;; esac
    done
    case "$path" in
{cases}
    esac
    _describe -o penstock found
    [[ $words[CURRENT] == -* ]] || _files
}}
compdef _penstock penstock
"""
FISH = """\
# Completion of `penstock` for fish; load it with: penstock completion fish | source
function __penstock_is
    set -l path ''
    for word in (commandline -opc)[2..]
        string match -q -- '-*' $word; and continue
        set path (string trim -- "$path $word")
        contains -- $path {ends}; and break
    end
    test "$path" = "$argv[1]"
end
"""


def print_script(arguments: Namespace) -> int:
    """Print the completion of one shell."""
    print(SHELLS[arguments.shell](), end="")
    return 0


def bash() -> str:
    """Return the script for bash."""
    cases = [
        f"        {_quoted(path)}) words={_quoted(' '.join(word for word, _ in choices))} ;;"
        for path, choices in _tree()
    ]
    return BASH.format(paths=_ends(), cases="\n".join(cases))


def zsh() -> str:
    """Return the script for zsh."""
    cases = []
    for path, choices in _tree():
        found = " ".join(_quoted(f"{word}:{_plain(doc)}") for word, doc in choices)
        cases.append(f"        {_quoted(path)}) found=({found}) ;;")
    return ZSH.format(paths=_ends(), cases="\n".join(cases))


def fish() -> str:
    """Return the script for fish."""
    lines = []
    for path, choices in _tree():
        test = f"__penstock_is {_quoted(path)}"
        for word, doc in choices:
            name = word.lstrip("-")
            kind = f"-l {name}" if word.startswith("--") else f"-s {name}"
            what = kind if word.startswith("-") else f"-a {word}"
            lines.append(
                f"complete -c penstock -n {_quoted(test)} {what} -d {_quoted(_plain(doc))}"
            )
    return FISH.format(ends=_ends(" ")) + "\n".join([*lines, ""])


def _tree() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield each path of words, and what may follow it with its meaning."""
    yield "", [(name, command.summary) for name, command in COMMANDS.items()]
    for name in COMMANDS:
        verbs = verbs_of(name)
        for verb in verbs:
            yield path_of(name, verb), list(_options(verb))
        if verbs and path_of(name, verbs[0]) != name:
            yield name, [(verb.name, verb.summary) for verb in verbs]


def _options(verb: Verb) -> Iterator[tuple[str, str]]:
    for option in verb.options:
        for name in option.names:
            yield name, option.doc or _counterpart(verb, option)
    for positional in verb.positionals:
        for choice in positional.settings.get("choices") or ():
            yield choice, positional.doc


def _counterpart(verb: Verb, option: Argument) -> str:
    """Return the text of the option that this one switches off."""
    target = option.settings.get("dest")
    docs = [each.doc for each in verb.options if each.settings.get("dest") == target]
    return f"Not: {next(filter(None, docs), '')}"


def _ends(between: str = "|") -> str:
    """Return the paths behind which only arguments follow."""
    paths = [path_of(name, verb) for name in COMMANDS for verb in verbs_of(name)]
    return between.join(_quoted(path) for path in paths)


def _plain(text: str) -> str:
    return text.replace("`", "").replace(":", " -").rstrip(".")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


SHELLS: dict[str, Callable[[], str]] = {"bash": bash, "zsh": zsh, "fish": fish}

COMPLETION = Verb(
    name="completion",
    summary="Print the completion of a shell.",
    run=print_script,
    connects=False,
    arguments=(
        argument("shell", metavar="SHELL", choices=tuple(SHELLS), doc="`bash`, `zsh` or `fish`."),
    ),
)

"""``laplace-metric completion``: a script for the shell, made from the parser."""

from __future__ import annotations

from argparse import Namespace

from laplace_metric.cli._options import parser
from laplace_metric.cli._parser import Parser

SCRIPT = """\
# completion of laplace-metric for {shell}: put into your start file
#   eval "$(laplace-metric completion {shell})"
{before}_laplace_metric() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
    local command="${{COMP_WORDS[1]}}" words=""
    if (( COMP_CWORD > 2 )); then
        case "${{COMP_WORDS[1]}}" in {groups}) command="$command ${{COMP_WORDS[2]}}" ;; esac
    fi
    (( COMP_CWORD == 1 )) && command=""
    case "$command $previous" in
{choices}
    esac
    if [[ -z "$words" ]]; then
        case "$command" in
{options}
        esac
        [[ "$current" != -* && "$words" == -* ]] && words=""
    fi
    COMPREPLY=( $(compgen -W "$words" -- "$current") )
}}
complete -o bashdefault -o default -F _laplace_metric laplace-metric
"""
BEFORE = {"bash": "", "zsh": "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"}


def completion(options: Namespace) -> None:
    """Print the script."""
    print(script(options.shell), end="")


def script(shell: str) -> str:
    """Commands, options and their choices; elsewhere, the shell completes names of files.

    Examples
    --------
    >>> "fit embed index" in script("bash")
    True
    """
    found = {"": parser(), **_commands(parser(), "")}
    choices = [
        f'        "{name} {option}") words="{" ".join(values)}" ;;'
        for name, command in found.items()
        for option, values in command.choices_of().items()
    ]
    options = [f'            "{name}") words="{_words(part)}" ;;' for name, part in found.items()]
    return SCRIPT.format(
        shell=shell,
        before=BEFORE[shell],
        groups="|".join(name for name, command in found.items() if name and command.commands()),
        choices="\n".join(choices),
        options="\n".join(options),
    )


def _commands(top: Parser, before: str) -> dict[str, Parser]:
    """Every command by its words, those within a command too."""
    found: dict[str, Parser] = {}
    for name, command in top.commands().items():
        words = f"{before} {name}".strip()
        found |= {words: command, **_commands(command, words)}
    return found


def _words(command: Parser) -> str:
    """Return the words that may follow: commands, options, or values of a choice."""
    values = [
        str(choice)
        for action in command._get_positional_actions()
        for choice in action.choices or ()
    ]
    return " ".join(values or command.options())

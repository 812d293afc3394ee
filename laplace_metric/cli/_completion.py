"""``laplace-metric completion``: a script for the shell, made from the table of commands."""

from __future__ import annotations

from argparse import Namespace

from laplace_metric.cli._options import COMMANDS, commands_in

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
    choices, options = [], ['"") words="{} --help --version" ;;'.format(" ".join(commands_in("")))]
    for name, command in COMMANDS.items():
        words = [*commands_in(name), *(o.name for o in command.options if not o.positional)]
        words += ["--help"]
        for option in command.options:
            if option.positional and option.choices:
                words = option.choices
            elif option.choices:
                choices.append(f'"{name} {option.name}") words="{" ".join(option.choices)}" ;;')
        options.append(f'"{name}") words="{" ".join(words)}" ;;')
    return SCRIPT.format(
        shell=shell,
        before=BEFORE[shell],
        groups="|".join(name for name in COMMANDS if commands_in(name)),
        choices="\n".join(f"        {line}" for line in choices),
        options="\n".join(f"            {line}" for line in options),
    )

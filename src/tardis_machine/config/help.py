"""Text derived from the settings: `--help`, and the page that documents every setting."""

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

from tardis_machine.config.section import EMPTY, ConfigError, Option, Section, Setting, options


def describe(sections: Iterable[type[Section]]) -> str:
    """Return the configuration page in Markdown: one table per section."""
    parts = []
    for owner in sections:
        table = f"[{owner.section}]" if owner.section else "top level"
        lines = [f"## {owner.title}", ""]
        if owner.note:
            lines += [owner.note, ""]
        lines += [
            f"In a file: {table}." if not owner.section else f"In a file: table `{table}`.",
            "",
            "| flag | variable | key in a file | default | meaning |",
            "|---|---|---|---|---|",
        ]
        for option in options(owner):
            declared = option.setting
            variables = [f"`{option.variable}`"]
            if declared.secret:
                variables.append(f"`{option.variable}_FILE`")
            if declared.env_override:
                variables.insert(0, f"`{declared.env_override}`")
            flag = f"`{option.flag}`"
            if declared.short:
                flag = f"`{declared.short}` {flag}"
            if option.kind is not bool:
                flag += f" {option.metavar}".replace("|", "\\|")
            default = f"`{option.shown(option.default)}`" if option.default not in EMPTY else ""
            meaning = (declared.help + bounds(declared)).replace("|", "\\|")
            name = option.name.removesuffix("_")
            row = (flag, " ".join(variables), f"`{name}`", default, meaning)
            lines.append("| " + " | ".join(row) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def print_help(
    sections: Sequence[type[Section]],
    arguments: Sequence[str],
    *,
    prog: str,
    description: str,
    epilog: str,
) -> None:
    """Print the help of the sections, or of the topic named after `--help`.

    Without a topic, a section that is a topic of its own is shortened to the names of its flags.
    """
    width = min(shutil.get_terminal_size((100, 24)).columns, 100)
    position = next(i for i, word in enumerate(arguments) if word in {"-h", "--help"})
    topic = arguments[position + 1] if position + 1 < len(arguments) else ""
    topics = [owner.help_topic for owner in sections if owner.help_topic]
    if topic and not topic.startswith("-") and topic not in {*topics, "all"}:
        raise ConfigError("--help", topic, f"expected one of {', '.join(topics)}, all, or nothing")
    lines: list[str] = []
    if topic not in topics and topic != "all":
        lines += [f"usage: {prog} [flags]", ""]
        if description:
            lines += [description, ""]
    for owner in sections:
        if topic in topics and owner.help_topic != topic:
            continue
        if owner.help_topic and topic not in topics and topic != "all":
            names = " ".join(option.flag for option in options(owner))
            lines.append(f"{owner.title}: {prog} --help {owner.help_topic}")
            lines += textwrap.wrap(
                names,
                width - 2,
                initial_indent="  ",
                subsequent_indent="  ",
                break_on_hyphens=False,
            )
        else:
            lines.append(f"{owner.title}:" + (f" {owner.note}" if owner.note else ""))
            for option in options(owner):
                lines += _help_lines(option, width)
        lines.append("")
    if topic not in topics:
        lines += [
            "Every flag is also a variable (--cache-dir: TM_CACHE_DIR); --config FILE.toml reads a",
            "file. Precedence: flag, environment, file, default. -v prints the version.",
        ]
    if epilog and topic not in topics:
        lines += ["", epilog]
    sys.stdout.write("\n".join(lines).rstrip() + "\n")


def help_text(option: Option) -> str:
    """Return an option's help with its bounds and, in brackets, its default."""
    text = option.setting.help + bounds(option.setting)
    if option.kind is bool or option.default in EMPTY:
        return text
    return f"{text} [{option.shown(option.default)}]"


def _help_lines(option: Option, width: int) -> list[str]:
    indent = 34
    name = option.flag
    if option.setting.short:
        name = f"{option.setting.short} {name}"
    if option.kind is bool:
        name = name if not option.default else f"--no-{option.flag[2:]}"
    else:
        name = f"{name} {option.metavar}"
    body = textwrap.wrap(help_text(option), width - indent) or [""]
    head = f"  {name}"
    first = [head] if len(head) >= indent else [head.ljust(indent) + body.pop(0)]
    return first + [" " * indent + line for line in body]


def bounds(declared: Setting) -> str:
    """Return ` (minimum..maximum)`, or nothing if the setting has only one bound or none."""
    if declared.minimum is not None and declared.maximum is not None:
        return f" ({declared.minimum:.15g}..{declared.maximum:.15g})"
    return ""

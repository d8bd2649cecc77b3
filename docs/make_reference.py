"""Write docs/reference/*.md from the code; `--check` says whether they are current."""

import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "reference"


def settings_page() -> str:
    """Every setting with its default and meaning, read from the schema."""
    import dataclasses

    from headstart import config
    from headstart.objectives import OBJECTIVES

    lines = ["# Settings", "", "Any of these goes into a TOML file (`--config`) or on the command line as"]
    lines += [
        "`--set section.key=value`. A preset sets some of them, differently for pretraining and fine-tuning, and a base",
        "may recommend others for its fine-tuning; what you set yourself wins.",
        "",
    ]
    for name, field in config.RunConfig.model_fields.items():
        section: Any = field.annotation
        if not (isinstance(section, type) and issubclass(section, config.Section)):
            continue
        lines += [f"## {name}", "", (section.__doc__ or "").strip(), "", "| key | default | meaning |", "|---|---|---|"]
        for key, inner in section.model_fields.items():
            kind = str(inner.annotation).replace("typing.", "")
            values = f" ({kind.removeprefix('Literal').strip('[]')})" if kind.startswith("Literal") else ""
            lines.append(f"| `{name}.{key}` | `{inner.default}` | {inner.description or ''}{values} |")
        lines.append("")
    lines += ["## objective", "", "`objective.name` chooses one; its other keys are its own:", ""]
    for name, kind in OBJECTIVES.items():
        lines += [f"### {name}", "", (kind.__doc__ or "").strip(), ""]
        fields = dataclasses.fields(kind)
        lines += [f"- `objective.{field.name}` = `{field.default}`" for field in fields] or ["No settings."]
        lines.append("")
    from headstart.serving.schema import Limits

    lines += ["## Limits of headstart serve", "", "`headstart serve --set limits.KEY=VALUE` changes one.", ""]
    lines += ["| key | default | meaning |", "|---|---|---|"]
    for key, inner in Limits.model_fields.items():
        lines.append(f"| `limits.{key}` | `{inner.default}` | {inner.description} |")
    lines += ["", "## Presets", ""]
    for name in config.preset_names():
        lines += [f"### {name}", "", config.load_preset(name)["title"], "", "```toml", preset_text(name), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def preset_text(name: str) -> str:
    """A preset's file without its title."""
    from importlib import resources

    text = resources.files("headstart.presets").joinpath(f"{name}.toml").read_text("utf-8")
    return "\n".join(text.splitlines()[1:]).strip()


def commands_page() -> str:
    """Every command with its arguments and options, read from the command line itself."""
    import typer

    from headstart.cli.app import app

    group: Any = typer.main.get_command(app)
    lines = ["# Commands", "", group.help, ""]

    def describe(name: str, command: Any) -> None:
        if hasattr(command, "commands"):
            for inner, part in command.commands.items():
                describe(f"{name} {inner}", part)
            return
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        usage = " ".join([name, *(p.metavar or p.name.upper() for p in arguments)])
        lines.extend([f"## {name}", "", f"`{usage} [OPTIONS]`", "", " ".join((command.help or "").split()), ""])
        lines.extend(["```console", *(f"$ {line.strip()}" for line in command.epilog.split("\n")[1:]), "```", ""])
        lines.extend(["| option | meaning | default |", "|---|---|---|"])
        for parameter in command.params:
            if parameter.param_type_name == "option" and parameter.name != "help" and not parameter.hidden:
                default = "" if parameter.default is None or parameter.default is False else f"`{parameter.default}`"
                if isinstance(parameter.show_default, str):
                    default = parameter.show_default
                lines.append(f"| `{', '.join(parameter.opts)}` | {parameter.help} | {default} |")
        lines.append("")

    describe("headstart", group)
    return "\n".join(lines).rstrip() + "\n"


PAGES = {"settings.md": settings_page, "commands.md": commands_page}


def main() -> int:
    """Write the pages, or check them."""
    stale = []
    for name, make in PAGES.items():
        path, text = FOLDER / name, make()
        if "--check" in sys.argv:
            if not path.exists() or path.read_text("utf-8") != text:
                stale.append(name)
        else:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
    if stale:
        print(f"stale: {', '.join(stale)}; run python docs/make_reference.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())

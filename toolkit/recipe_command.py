"""A recipe as a command: from its arguments to the exit code of its process."""

import io
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from toolkit.config.schema import AnyConfig, Config
from toolkit.config.trackers import tracker_names
from toolkit.distributed.launcher_variables import check_launcher_variables
from toolkit.errors import DEFECT, DONE, STOPPED, USER_CAN_FIX, LoneUserError, Preempted, SharedUserError, UserError
from toolkit.output import pipes

if TYPE_CHECKING:
    from toolkit.task import Task

# A launcher ends all processes as soon as one has failed: the others give the main one this long to speak first.
SECONDS_TO_SPEAK = 10.0


def fine_tune(
    config_class: type[AnyConfig], task: "Callable[[AnyConfig], Task]", arguments: Sequence[str] | None = None
) -> NoReturn:
    """Run a recipe: parse the command line, train, evaluate, write the run folder, and exit.

    Args:
        config_class: the recipe's configuration; the docstring of its module is shown by `--help`.
        task: makes the task from the configuration.
        arguments: the command line, that of the process by default.

    Exit codes: 0 done, 2 something that the user can fix (one message, no traceback), 75 stopped on request with a
    sealed checkpoint (the same command goes on), 1 a defect.
    """
    module = sys.modules[config_class.__module__]
    recipe = Path(getattr(module, "__file__", None) or config_class.__name__.lower()).stem
    config: AnyConfig | None = None
    pipes.prepare()
    try:
        check_launcher_variables()
        config = settings_of(config_class, module.__doc__ or "", arguments, recipe)
        code = stays_stopped(config)
        if code is not None:
            sys.exit(code)
        end_with_launcher()
        # torch and Accelerate are imported from here on: `--help` and a mistyped flag have been answered.
        from toolkit.run import run

        run(config, task, recipe)
        code = DONE
    except UserError as error:
        report(recipe, config, error)
        code = USER_CAN_FIX
    except Preempted as stop:
        if is_main_process():
            from toolkit.distributed.final_message import print_final_message

            print_final_message(
                f"\n{recipe}: stopped on request ({stop.reason}) after step {stop.step:,}, which has a sealed "
                f"checkpoint; {next_command(config)} from there",
                sys.stdout,
            )
        code = STOPPED
    except KeyboardInterrupt:
        if is_main_process():
            evaluates = config is not None and config.evaluate.only
            what = "interrupted; nothing was written" if evaluates else "interrupted before anything was begun"
            pipes.print_line(f"\n{recipe}: {what}", sys.stderr)
        code = DEFECT
    except Exception:
        traceback.print_exc()
        code = DEFECT
    with suppress(UserError):
        pipes.flush()
    sys.exit(code)


def end_with_launcher() -> None:
    """Let this process end when its launcher does, until the run has begun and takes that for a request to stop.

    Raises:
        UserError: it has ended already.
    """
    from toolkit.distributed.launch import launched, orphaned
    from toolkit.signals import tell_when_launcher_dies

    if launched():
        # Nothing listens yet: the signal ends the process.
        tell_when_launcher_dies()
    if orphaned():
        raise UserError("the launcher ended before the run had begun; start the same command again")


def next_command(config: Config | None) -> str:
    """Return how a run goes on."""
    from_scratch = config is not None and config.resume == "never"
    return "the command with --resume auto goes on" if from_scratch else "the same command goes on"


def stays_stopped(config: Config) -> int | None:
    """Return the code to end with if an agent started this process again after the run had been asked to stop.

    The agent knows only that its processes ended with a code that is not 0, and goes on until no restart is left. On
    several machines process 0, which finds the run folder, tells the others.
    """
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        return None
    from toolkit.distributed.launch import agent, several_machines
    from toolkit.output.run_folder import read_record

    record = read_record(Path(str(config.output)))
    if record.get("agent") is None or record["agent"] != agent() or machines_changed(record):
        return None
    code = {"preempted": STOPPED, "failed": DEFECT}.get(str(record.get("status")))
    if code is None or not several_machines():
        return code
    if not is_main_process():
        return None
    from toolkit.distributed.rendezvous import dismiss

    return dismiss(code, config.timeout.rendezvous)


def machines_changed(record: Mapping[str, Any]) -> bool:
    """Return whether the run stopped because a machine came or went: launchers announce both by SIGTERM."""
    started = record.get("topology") or [{}]
    grown_or_shrunk = str(started[-1].get("processes")) != os.environ.get("WORLD_SIZE", "1")
    return grown_or_shrunk and record.get("status") == "preempted" and "SIGTERM" in str(record.get("reason"))


def settings_of(
    config_class: type[AnyConfig], description: str, arguments: Sequence[str] | None, recipe: str
) -> AnyConfig:
    """Return the configuration that the command line asks for; `--help` and `--print_config` end the process."""
    from toolkit.config.parser import parse, read

    # Every process reads the command line, and one of them speaks.
    with redirect_stdout(sys.stdout if is_main_process() else io.StringIO()):
        given = read(config_class, arguments).values
        if given.get("evaluate.only"):
            from toolkit.output.saved_run import evaluation_settings

            words = sys.argv[1:] if arguments is None else arguments
            return evaluation_settings(config_class, description, words, recipe)
        try:
            config = parse(config_class, description, arguments)
        except UserError as error:
            output = given.get("output") or f"runs/{recipe}"
            of_folder = resume_problems(given.get("resume", "auto"), output)
            raise UserError(*error.problems, *of_folder, *tracker_problems(given.get("track.to"))) from None
        if lacking := tracker_problems(config.track.to):
            raise UserError(*lacking)
    return config if config.output is not None else replace(config, output=f"runs/{recipe}")


def resume_problems(resume: str, output: str) -> list[str]:
    """Return what is wrong with `resume` where the settings have other mistakes, for one message with them.

    It depends on the run folder, so it is no mistake of the settings alone, and only the machine of the main process
    has that.
    """
    from toolkit.checkpoint.compatibility import names_nothing

    problem = names_nothing(resume, Path(output)) if is_main_process() else None
    return [problem] if problem else []


def tracker_problems(given: Any) -> list[str]:
    """Return what the trackers that a run is to be sent to lack here, on the machine of the main process."""
    names = tracker_names(given)
    if not names or not is_main_process():
        return []
    from toolkit.tracking.readiness import problems_here

    return problems_here(names, "track.to")


def is_main_process() -> bool:
    """Return whether this is the process that speaks, as far as the launcher says; no process group is needed."""
    return os.environ.get("RANK", "0") == "0"


def report(recipe: str, config: Config | None, error: UserError) -> None:
    """Tell the user once, from the main process, and leave word in the run folder if that is this run's own."""
    if not is_main_process() and not isinstance(error, LoneUserError) and not speaks_for_its_machine(error):
        time.sleep(SECONDS_TO_SPEAK)
        return
    if is_main_process() and config is not None and config.output is not None:
        from toolkit.output.run_folder import record_refusal

        record_refusal(Path(config.output), error.problems)
    from toolkit.distributed.final_message import print_final_message

    with suppress(UserError):
        pipes.flush()
    print_final_message(
        "\n".join(["", f"{recipe} can't go on:", *(f"  - {problem}" for problem in error.problems)]), sys.stderr
    )


def speaks_for_its_machine(error: UserError) -> bool:
    """Return whether this is the first process of a machine without the main one, which may have no such error.

    A mistyped flag or a GPU that is missing there: the others would wait for its processes, and nobody would know why.
    """
    from toolkit.distributed.launch import several_machines

    return several_machines() and os.environ.get("LOCAL_RANK") == "0" and not isinstance(error, SharedUserError)

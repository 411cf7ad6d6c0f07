"""A run in the kernel: the command's own, with a result instead of an exit code."""

from pathlib import Path

from toolkit.errors import UserError
from toolkit.notebook.kernel import start_in_kernel
from toolkit.notebook.opening import Recipe
from toolkit.output.result import Result
from toolkit.output.run_folder import leave_word_of_refusal
from toolkit.run import run as run_recipe


def run(recipe: Recipe) -> Result:
    """Run a recipe in this process, as its command would, and return the result.

    The same cell again goes on with a run that was stopped, and reports a finished one. Interrupting the kernel once stops the
    run with a sealed checkpoint; twice ends it at once. The kernel outlives both.

    Raises:
        UserError: what the command would refuse, told in the same sentences.
        Preempted: the run stopped on request.
    """
    runtime = None
    try:
        runtime = start_in_kernel(recipe.config)
        return run_recipe(recipe.config, recipe.task, recipe.name, runtime)
    except UserError as error:
        leave_word_of_refusal(Path(str(recipe.config.output)), error.problems)
        raise
    except KeyboardInterrupt:
        # By then nobody else has let go of the model.
        if runtime is not None:
            runtime.close()
        raise

"""The tools that ship with perdure."""

from __future__ import annotations

from perdure.harness.registry import Tool
from perdure.tools.bash import bash
from perdure.tools.edit import edit
from perdure.tools.jobs import job_kill, jobs
from perdure.tools.read import read
from perdure.tools.write import write

#: `read` and `jobs` change nothing, and what is ended stays so: they may be repeated; the others never are (H19).
BUILTINS: tuple[Tool, ...] = (read, write, edit, bash, jobs, job_kill)

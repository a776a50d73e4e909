"""Ray's Job Submission API; use it through orchestrator.cluster.jobs."""

from __future__ import annotations

import asyncio
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from ray.exceptions import RayError
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from orchestrator import submission
from orchestrator.errors import UserError
from orchestrator.spec import JobSpec

_POLL_SECONDS = 1.0
_SETTLE_SECONDS = 60.0
_FAILURES = (RayError, RuntimeError, ConnectionError, OSError, ValueError)


class Cluster:
    """One cluster's job API, `http://head:8265`."""

    def __init__(self, address: str) -> None:
        """Raises UserError when nothing answers there, or when its Ray is not ours."""
        if not address.startswith(("http://", "https://")):
            raise UserError(f"--address is '{address}'; a job is submitted to http://HEAD:8265, Ray's dashboard port.")
        self.address = address
        try:
            self._client = JobSubmissionClient(address)
            theirs = str(self._client._do_request("GET", "/api/version").json()["ray_version"])
        except _FAILURES as error:
            raise UserError(
                f"Ray's job API at {address} does not answer us: {error} Is the cluster up, and is its dashboard port "
                "reachable (for example by an SSH tunnel to port 8265)?"
            ) from error
        if theirs != (ours := version("ray")):
            python = ".".join(map(str, sys.version_info[:3]))
            raise UserError(
                f"the cluster at {address} runs Ray {theirs}, this machine Ray {ours} (Python {python}). Install the "
                "same evictbench environment on both."
            )

    def submit(self, job: JobSpec, store: str, options: tuple[str, ...] = ()) -> str:
        """Start `evictbench run` of the job on the cluster; returns the submission id.

        Raises UserError when the campaign is running there already, or the cluster refuses the job.
        """
        submission.refuse_local_places(job, store)
        files = submission.package(job)
        known = self._submissions(job.name)
        for name, status in known.items():
            if not status.is_terminal():
                raise UserError(
                    f"'{name}' of campaign '{job.name}' is {status.value.lower()} at {self.address}. Follow it with: "
                    f"evictbench logs {job.source.path} --address {self.address}"
                )
        submission_id = submission.next_id(job.name, known)
        command = ["evictbench", "run", str(job.source.path.name), "--address", "auto", "--store", store, *options]
        with tempfile.TemporaryDirectory(prefix="evictbench-submit-") as folder:
            files.write(Path(folder))
            try:
                return self._client.submit_job(
                    entrypoint=shlex.join(command),
                    submission_id=submission_id,
                    runtime_env={"working_dir": folder},
                    metadata={"campaign": job.name, "store": store, "evictbench": version("evictbench")},
                )
            except _FAILURES as error:
                raise UserError(f"the cluster at {self.address} refused '{submission_id}': {error}") from error

    def latest(self, campaign: str) -> str:
        """Id of the campaign's newest submission. Raises UserError when the cluster knows none."""
        known = self._submissions(campaign)
        if not known:
            raise UserError(f"the cluster at {self.address} knows no submission of campaign '{campaign}'.")
        return max(known, key=lambda name: int(name.rpartition("-")[2]))

    def logs(self, submission_id: str) -> str:
        """All that the submission's driver has printed."""
        return str(self._client.get_job_logs(submission_id))

    def follow(self, submission_id: str, show: Callable[[str], None]) -> int:
        """Show the driver's output until it ends; returns its exit status. A lost connection is taken up again."""
        shown = 0
        while True:
            try:
                shown = asyncio.run(self._tail(submission_id, shown, show))
            except _FAILURES:
                time.sleep(_POLL_SECONDS)
            if self._details(submission_id).status.is_terminal():
                return self._exit_status(submission_id, show)

    async def _tail(self, submission_id: str, skip: int, show: Callable[[str], None]) -> int:
        """Show what comes after the first `skip` characters; returns the characters seen in all."""
        seen = 0
        async for text in self._client.tail_job_logs(submission_id):
            seen += len(text)
            if seen > skip:
                show(text[-min(len(text), seen - skip) :])
                skip = seen
        # The stream closes a moment before the job is on record as ended.
        deadline = time.monotonic() + _SETTLE_SECONDS
        while not self._details(submission_id).status.is_terminal() and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
        return max(seen, skip)

    def _exit_status(self, submission_id: str, show: Callable[[str], None]) -> int:
        details = self._details(submission_id)
        if details.status is JobStatus.SUCCEEDED:
            return 0
        if details.driver_exit_code is None:
            show(f"{submission_id} {details.status.value.lower()}: {details.message}\n")
        return details.driver_exit_code or 1

    def _details(self, submission_id: str) -> JobDetails:
        return self._client.get_job_info(submission_id)

    def _submissions(self, campaign: str) -> dict[str, JobStatus]:
        try:
            jobs = self._client.list_jobs()
        except _FAILURES as error:
            raise UserError(f"the cluster at {self.address} does not list its jobs: {error}") from error
        return {
            job.submission_id: job.status
            for job in jobs
            if job.submission_id and (job.metadata or {}).get("campaign") == campaign
        }

"""Jobs on machines that are network namespaces."""

import unittest

import clusters
import job


@unittest.skipUnless(clusters.is_possible(), "no network namespaces")
class OnHead(job.JobTest):
    """Commands are given on a host called head."""

    @classmethod
    def setUpClass(cls):
        cls.machines = clusters.Machines(job.TUTTI)
        cls.addClassCleanup(cls.machines.remove)
        cls.variables = cls.machines.with_ssh()

    def setUp(self):
        super().setUp()
        program, job.TUTTI = job.TUTTI, self.machines.tutti
        self.addCleanup(setattr, job, "TUTTI", program)

    def start(self, *arguments, env=None, **options):
        return super().start(*arguments, env={**self.variables, **(env or {})}, **options)

    def run_job(self, *arguments, **options):
        """A job and its end, soon after which Open MPI's daemons have ended, too."""
        started = self.start(*arguments, **options)
        result = started.wait()
        self.assert_gone(started)
        result.job = started
        return result

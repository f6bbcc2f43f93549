"""Processes that share a machine in slices of time: one runs, and the others are stopped.

A machine that others use has fast and slow times, of tenths of a second up to minutes.  What runs one after another meets
different ones; what takes turns in slices meets the same."""
import os
import signal
import subprocess
import tempfile


class Sliced:
    """A process and its children, which run within slices alone.  words: its command line.  To be used in a `with`, whose end
    ends the process."""

    def __init__(self, words):
        self.words = [str(w) for w in words]
        self.said, self.complained = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.process = subprocess.Popen(self.words, stdout=self.said, stderr=self.complained, start_new_session=True)
        self.send(signal.SIGSTOP)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def send(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass  # it has ended by itself

    def runs(self):
        return self.process.poll() is None

    def slice(self, seconds):
        """Lets it run for so long, or until it ends."""
        if not self.runs():
            return
        self.send(signal.SIGCONT)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGSTOP)

    def output(self):
        self.said.seek(0)
        return self.said.read().decode(errors="replace")

    def complaint(self):
        """What to say where it has failed."""
        self.complained.seek(0)
        text = self.complained.read().decode(errors="replace")
        return f"{' '.join(self.words)}: exit {self.process.poll()}: {self.output()}{text}"

    def end(self):
        """Ends it, as a user would who has seen enough; what does not end then is killed."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.runs():
                self.send(number)
                self.send(signal.SIGCONT)
                try:
                    self.process.wait(10)
                except subprocess.TimeoutExpired:
                    pass

"""What doors.py counts, and what went wrong in it."""
import threading

counts = {"scenes": 0, "runs": 0, "joins": 0, "connections": 0, "messages": 0}
failures = []
lock = threading.Lock()


def count(what, n=1):
    with lock:
        counts[what] += n


def check(ok, what, text=""):
    if not ok:
        failures.append(what)
        print(f"doors: FAIL {what}\n{text[-3000:]}", flush=True)
    return ok

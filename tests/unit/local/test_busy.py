"""Who took the cores: our own work and that of our children is not others', a stranger's is."""

import subprocess
import sys
import time

from resources.local.busy import Spent, others_percent, spent

SPIN_S = 1.0
SPIN = f"import time; end = time.process_time() + {SPIN_S}\nwhile time.process_time() < end: pass"
# Left by a parent that ends: nobody's child here, as another user's program.
STRANGER = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])"


def test_our_own_work_is_ours_whether_it_still_runs_or_has_ended() -> None:
    before = spent()
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    ended = spent()
    assert ended.ours - before.ours >= SPIN_S * 0.95
    with subprocess.Popen([sys.executable, "-c", SPIN + "\ntime.sleep(60)"]) as running:
        try:
            while spent().ours - ended.ours < SPIN_S * 0.95:
                time.sleep(0.05)
        finally:
            running.kill()


def test_what_a_stranger_takes_is_others() -> None:
    before = spent()
    subprocess.run([sys.executable, "-c", STRANGER, SPIN], check=True)
    while (after := spent()).all - after.ours < before.all - before.ours + SPIN_S * 0.9:
        time.sleep(0.05)
    assert others_percent(before, after, 1) > 0


def test_no_time_at_all_is_nobodys() -> None:
    assert others_percent(Spent(1.0, 5.0, 1.0), Spent(1.0, 5.0, 1.0), 2) == 0
    assert others_percent(Spent(0.0, 5.0, 1.0), Spent(1.0, 6.0, 2.1), 2) == 0

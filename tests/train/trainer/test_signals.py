"""A wish to stop is not lost, wherever it comes."""

import gc
import signal
import time

import pytest

from train.trainer import folder_lock
from train.trainer.folder_lock import held
from train.trainer.options import CommonOptions
from train.trainer.run import Run
from train.trainer.signals import Stopped, stop_wish, stoppable, undisturbed

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def lose(number):
    """A signal whose exception nobody sees: it is raised in a callback of the garbage collector."""

    def callback(phase, info):
        if phase == "start":
            gc.callbacks.remove(callback)
            signal.raise_signal(number)

    gc.callbacks.append(callback)
    gc.collect(0)


@pytest.mark.parametrize("number", SIGNALS)
def test_what_a_callback_swallows_is_raised_before_anything_is_written(number, tmp_path):
    with pytest.raises(Stopped) as stopped, stoppable():
        lose(number)
        Run("", tmp_path, CommonOptions()).begin("")
    assert stopped.value.number == number
    assert not any(tmp_path.iterdir())


def test_what_a_callback_swallows_is_raised_before_training_and_at_the_end():
    with pytest.raises(Stopped), stoppable():
        lose(signal.SIGINT)
        with stop_wish():
            raise AssertionError("training began")
    reached = False
    with pytest.raises(Stopped), stoppable():
        lose(signal.SIGINT)
        reached = True
    assert reached


def test_what_a_callback_swallows_is_raised_again_soon():
    with pytest.raises(Stopped) as stopped, stoppable():
        lose(signal.SIGTERM)
        time.sleep(10)
        raise AssertionError("it was lost")
    assert stopped.value.number == signal.SIGTERM


def test_an_error_that_a_library_makes_of_a_signal_is_no_error_of_the_program():
    with pytest.raises(Stopped), stoppable():
        try:
            signal.raise_signal(signal.SIGINT)
        except Stopped:
            raise ImportError("initialization failed") from None
    with pytest.raises(ImportError), stoppable():
        raise ImportError("a true one")


def test_a_signal_within_undisturbed_lines_waits_for_their_end():
    done = []
    with pytest.raises(Stopped) as stopped, undisturbed():
        signal.raise_signal(signal.SIGTERM)
        done.append(1)
    assert done and stopped.value.number == signal.SIGTERM


def test_a_signal_as_the_lock_is_made_leaves_no_folder(tmp_path, monkeypatch):
    lock = folder_lock._lock

    def locked(path):
        file = lock(path)
        signal.raise_signal(signal.SIGINT)
        return file

    monkeypatch.setattr(folder_lock, "_lock", locked)
    with pytest.raises(Stopped), stoppable(), held(tmp_path / "runs" / "one", new=True):
        raise AssertionError("the run began")
    assert not any(tmp_path.iterdir())


def test_without_a_signal_the_old_handlers_stand_again():
    before = [signal.getsignal(each) for each in SIGNALS]
    with stoppable(), undisturbed(), stop_wish() as wish:
        pass
    assert wish.number is None
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_the_alarm_of_a_caller_is_left_alone():
    """A timer of the caller ends a test that hangs."""
    handler, timer = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    before = signal.setitimer(signal.ITIMER_REAL, 500)
    try:
        with stoppable():
            assert signal.getsignal(signal.SIGALRM) is handler
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 400
    finally:
        signal.setitimer(signal.ITIMER_REAL, *(before if timer[0] else (0, 0)))

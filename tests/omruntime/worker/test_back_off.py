from __future__ import annotations

from omruntime.worker.back_off import FIRST_S, HEALTHY_S, MOST_S, BackOff


def test_delays_double_up_to_a_bound() -> None:
    back_off = BackOff()
    delays = [back_off.next_delay_s(0.0) for _ in range(20)]
    assert delays[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert delays[-1] == delays[-2] == MOST_S
    assert delays == sorted(delays)


def test_a_time_of_health_begins_anew() -> None:
    back_off = BackOff()
    for _ in range(5):
        back_off.next_delay_s(0.0)
    assert back_off.next_delay_s(HEALTHY_S - 1) > FIRST_S
    assert back_off.next_delay_s(HEALTHY_S) == FIRST_S
    assert back_off.next_delay_s(0.0) == 2 * FIRST_S

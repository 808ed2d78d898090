from isotherm.engine.fleet_speed import SPEED_OF_FLEETS, one_by_one


def test_the_factors_fall_with_the_batch_size() -> None:
    factors = list(SPEED_OF_FLEETS.values())
    assert factors == sorted(factors, reverse=True)
    assert list(SPEED_OF_FLEETS) == sorted(SPEED_OF_FLEETS)


def test_all_of_them_are_said() -> None:
    assert all(f"{times} times" in one_by_one() for times in SPEED_OF_FLEETS.values())

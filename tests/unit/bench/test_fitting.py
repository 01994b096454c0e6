"""Linear models of costs: fitted, checked at a run that they have not seen, and extrapolated."""

import pytest

from bench.fitting import Extrapolation, MeasuredRun, fit


def run(partitions: int, value: float) -> MeasuredRun:
    return MeasuredRun(name=f"{partitions} partitions", size={"constant": 1, "partitions": partitions}, value=value)


def test_the_costs_of_exact_runs_are_found() -> None:
    model = fit([run(100, 3.0), run(300, 5.0), run(1_000, 12.0)], ["constant", "partitions"])
    assert dict(model.coefficients) == pytest.approx({"constant": 2.0, "partitions": 0.01})
    assert model.predict({"constant": 1, "partitions": 10_000}) == pytest.approx(102.0)
    assert model.error_percent(run(2_000, 11.0)) == pytest.approx(100.0)


def test_a_cost_is_never_negative() -> None:
    model = fit([run(100, 1.0), run(200, 4.0), run(400, 16.0)], ["constant", "partitions"])
    assert model.coefficients["constant"] == 0
    assert model.coefficients["partitions"] > 0


def test_costs_cannot_be_told_from_fewer_runs() -> None:
    with pytest.raises(ValueError, match="2 costs"):
        fit([run(100, 1.0)], ["constant", "partitions"])


def test_a_check_that_grows_faster_than_the_model_misses_its_target() -> None:
    def rows_of(checked: float) -> list[bool]:
        costs = Extrapolation(
            name="cost",
            unit="s",
            terms=["partitions"],
            runs=[run(100, 1.0), run(200, 2.0)],
            check=run(400, checked),
            predicted=("1,000 partitions", {"partitions": 1_000}),
        )
        rows = costs.rows()
        assert rows[-1].name == "cost, 1,000 partitions: predicted"
        assert rows[-1].ours == pytest.approx(10.0)
        return [row.is_met for row in rows]

    assert all(rows_of(4.5))
    assert not all(rows_of(6.0))

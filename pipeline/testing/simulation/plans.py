"""Which cluster a seed simulates, and under which faults."""

from pipeline.testing.simulation.scenario import Plan

ONE_BROKER_EVERY = 10
BEYOND_EVERY = 25
BEYOND_FAULTS = ("kill", "kill all", "power of one", "power of all", "partition", "session", "pause")


def plan_for(seed: int) -> Plan:
    """Three brokers under what is promised; now and then one broker, or trouble beyond the promise."""
    if seed % BEYOND_EVERY == BEYOND_EVERY - 1:
        return Plan(seed=seed, fault_kinds=BEYOND_FAULTS, may_end_offline=True)
    if seed % ONE_BROKER_EVERY == 0:
        return single_broker_plan(seed)
    return Plan(seed=seed)


def single_broker_plan(seed: int) -> Plan:
    """One broker that syncs each record before it is acknowledged, and loses its power at any time."""
    return Plan(
        seed=seed,
        brokers=1,
        settings={
            "default.replication.factor": 1,
            "min.insync.replicas": 1,
            "offsets.topic.replication.factor": 1,
            "log.flush.interval.messages": 1,
        },
        fault_kinds=("kill", "crash", "stop", "sync and power", "power of one", "full", "connections"),
    )

"""Clusters that seeds simulate, and their faults."""

from pipeline.testing.simulation.plan import RunPlan

ONE_BROKER_EVERY = 10
BEYOND_EVERY = 25
BEYOND_FAULTS = ("kill", "kill all", "power of one", "power of all", "partition", "session", "pause")
FLUSHING_EVERY = 15
FLUSHING_FAULTS = ("kill", "crash", "power of one", "power of all", "pause", "partition", "session", "connections")
TRAVELLING_EVERY = 12
POWER_EVERY = 16
POWER_SEEDS = (6, 9)
"""Of each POWER_EVERY: the second ones have four brokers and an administrator anyway."""
POWER_FAULTS = (
    "power",
    "power and late fetches",
    "power under a move",
    "power under a recreation",
    "kill",
)
LEAD_EVERY = 16
LEAD_FAULTS = ("return", "return", "return", "interregnum")
SESSIONS_EVERY = 16
SESSIONS_FAULTS = (
    "sessions",
    "sessions",
    "session",
    "broker epoch",
    "broker epoch",
    "zookeeper cut",
    "zookeeper connection",
    "kill",
    "stop",
    "partition",
)
TRAVELLING_WITH_ADMINISTRATOR_EVERY = 24
ADMINISTERED_TRAVELLING_FAULTS = ("topic vanishes", "zookeeper restored", "kill", "session", "stop")
TRAVELLING_FAULTS = (
    "topic vanishes",
    "zookeeper restored",
    "zookeeper empty",
    "state vanishes",
    "state vanishes",
    "state set back",
    "kill",
    "session",
    "stop",
)


def plan_for(seed: int) -> RunPlan:
    """Three brokers under what is promised; now and then one broker, or trouble beyond the promise."""
    if seed % BEYOND_EVERY == BEYOND_EVERY - 1:
        return RunPlan(seed=seed, fault_kinds=BEYOND_FAULTS, may_end_offline=True, has_sightings=True)
    if seed % ONE_BROKER_EVERY == 0:
        return single_broker_plan(seed)
    if seed % FLUSHING_EVERY == FLUSHING_EVERY - 2:
        return flushing_plan(seed)
    if seed % TRAVELLING_EVERY == TRAVELLING_EVERY - 4:
        return RunPlan(seed=seed, fault_kinds=TRAVELLING_FAULTS)
    if seed % POWER_EVERY in POWER_SEEDS:
        return RunPlan(
            seed=seed, brokers=4, fault_kinds=POWER_FAULTS, has_administrator=True, has_cleaner=seed % 4 == 2
        )
    if seed % LEAD_EVERY == LEAD_EVERY - 2:
        return RunPlan(seed=seed, fault_kinds=LEAD_FAULTS, has_cleaner=True)
    if seed % TRAVELLING_WITH_ADMINISTRATOR_EVERY == TRAVELLING_WITH_ADMINISTRATOR_EVERY - 13:
        return RunPlan(seed=seed, fault_kinds=ADMINISTERED_TRAVELLING_FAULTS, has_administrator=True)
    return RunPlan(
        seed=seed,
        brokers=4 if seed % 4 == 1 else 3,
        has_administrator=seed % 2 == 1,
        has_cleaner=seed % 4 == 2,
        has_retention=seed % 4 in {0, 3},
        fault_kinds=SESSIONS_FAULTS if seed % SESSIONS_EVERY == SESSIONS_EVERY - 9 else (),
    )


def flushing_plan(seed: int) -> RunPlan:
    """Three brokers that sync each record before they tell anybody of it; all may lose their power at once."""
    settings = {"log.flush.interval.messages": 1}
    return RunPlan(seed=seed, settings=settings, fault_kinds=FLUSHING_FAULTS, has_sightings=True)


def single_broker_plan(seed: int) -> RunPlan:
    """Plan a broker that syncs each record before it is acknowledged, and loses its power at any time."""
    return RunPlan(
        seed=seed,
        brokers=1,
        settings={
            "default.replication.factor": 1,
            "min.insync.replicas": 1,
            "offsets.topic.replication.factor": 1,
            "log.flush.interval.messages": 1,
        },
        fault_kinds=("kill", "crash", "stop", "sync and power", "power of one", "full", "connections"),
        has_sightings=True,
    )

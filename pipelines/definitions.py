"""The code location: `dagster definitions validate -m pipelines.definitions`."""

import dagster as dg

from pipelines.environments import environment, ports
from pipelines.factory import build_model_defs, partitions_by_cadence
from pipelines.jobs import build_jobs
from pipelines.live_sensor import build_live_sensor
from pipelines.page_sensor import build_page_sensor
from pipelines.resume import build_resume_sensor
from pipelines.schedules import build_schedules
from pipelines.sensors import build_drift_sensor
from pipelines.spec import load_specs


@dg.definitions
def defs() -> dg.Definitions:
    """All models of the models folder, their jobs, schedules, sensors and resources."""
    where = environment()
    specs = load_specs(where.models)
    partitions = dict(partitions_by_cadence(specs))
    jobs = build_jobs(specs, where.executor)
    shared = dg.Definitions(
        jobs=jobs,
        schedules=build_schedules(specs, partitions),
        sensors=[
            build_drift_sensor(specs, partitions, jobs, where.max_loops),
            build_live_sensor(specs, partitions, jobs),
            build_page_sensor(specs, jobs),
            build_resume_sensor(specs, jobs),
        ]
        if specs
        else [],
        resources=ports(where).as_resources(),
    )
    return dg.Definitions.merge(*(build_model_defs(spec, partitions[spec.cadence]) for spec in specs), shared)

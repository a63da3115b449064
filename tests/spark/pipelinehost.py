"""
Runs pipelines in one Spark with settings of its own.

Called with the settings as JSON, and told on its input what to run: a pipeline's values on a
line, as JSON. It answers with a line for each, `done` or what went wrong.
"""

import json
import sys
import traceback

from penstock.spark import session
from penstock.spark.pipelines import runner
from penstock.spark.pipelines.config import parse


def main() -> None:
    """Run what comes, until the input ends."""
    spark = session("pipelines", master="local[2]", settings=json.loads(sys.argv[1]))
    for line in sys.stdin:
        try:
            runner.run(spark, parse(json.loads(line)), once=True, say=lambda text: None)
        except Exception:
            print(json.dumps(traceback.format_exc()), flush=True)
        else:
            print(json.dumps("done"), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()

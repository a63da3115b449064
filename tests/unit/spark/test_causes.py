"""What `penstock pipeline` says of a failure that Spark tells in a hundred lines."""

from __future__ import annotations

from penstock.spark.pipelines.runner import cause_of

PROXY = """[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred
Caused by: py4j.Py4JException: An exception was raised by the Python Proxy. Return Message: \
Traceback (most recent call last):
  File "state.py", line 56, in write
    write_batch(fold_batch(known, events, fold), config.target, batch, keep=keep)
pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the worker:
Traceback (most recent call last):
  File "serializers.py", line 483, in loads
    return cloudpickle.loads(obj, encoding=encoding)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ModuleNotFoundError: No module named 'folds'

\tat py4j.Protocol.getReturnValue(Protocol.java:476)
\t... 34 more
"""
DAMAGED = """org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error \
while reading file file:///lake/topic=a/part-1.parquet. SQLSTATE: KD001
Caused by: java.io.IOException: can not read class PageHeader: no size
\tat org.apache.parquet.format.Util.read(Util.java:455)
Caused by: shaded.TProtocolException: Required field 'size' was not found
"""


def test_an_error_of_python_is_the_last_line_of_its_traceback() -> None:
    told = "Spark has failed: ModuleNotFoundError: No module named 'folds'"

    assert told == str(cause_of(Exception(PROXY)))


def test_a_damaged_file_is_named() -> None:
    assert (
        "Spark has failed: Required field 'size' was not found, in the file "
        "file:///lake/topic=a/part-1.parquet" == str(cause_of(Exception(DAMAGED)))
    )

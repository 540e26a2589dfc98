"""Every error trimtab raises, drawn once. A message says what, in which state, why, and what to do.

TrimtabError
├── SpecError           a file people wrote is wrong: names file, field, value, remedy
├── DataError           data is not what its schema or its digest says
├── StoreError          the object store
│   ├── NotFound        no such key
│   └── Conflict        somebody else wrote first, or an immutable object would change
├── LineageError        MLflow
├── ServingError        Triton and its agents
│   ├── ModelNotReady   not loaded, or does not answer
│   └── PackageRefused  signature, digest or layout is wrong: names the file
├── GatewayError        Envoy
├── TrafficError        the inference log or its observer
├── ProfilerError       Triton Model Analyzer
└── StackError          a local server: names the part and its log's last lines
    └── PortTaken       somebody else listens where it was to

Foreign errors stop at the port: each resource maps those of its client to one of these.
"""


class TrimtabError(Exception):
    """Base of all errors raised on purpose."""


class SpecError(TrimtabError):
    """A file people wrote is wrong."""

    def __init__(self, file: object, field: str, value: object, remedy: str, line: int | None = None) -> None:
        super().__init__(f"{file}{'' if line is None else f':{line}'}: {field} = {value!r}: {remedy}")
        self.file, self.field, self.value, self.remedy, self.line = str(file), field, value, remedy, line


class DataError(TrimtabError):
    """Data is not what its schema or its digest says."""


class StoreError(TrimtabError):
    """The object store answered with an error, or not at all."""


class NotFound(StoreError):
    """No object under this key."""


class Conflict(StoreError):
    """Somebody else wrote first, or an immutable object would change."""


class LineageError(TrimtabError):
    """MLflow answered with an error, or not at all."""


class ServingError(TrimtabError):
    """Triton or its agent answered with an error, or not at all."""


class ModelNotReady(ServingError):
    """The model is not loaded, or does not answer."""


class PackageRefused(ServingError):
    """A package's signature, digest or layout is wrong."""


class GatewayError(TrimtabError):
    """Envoy did not take or did not confirm a change."""


class TrafficError(TrimtabError):
    """The inference log is missing, or its observer does not answer."""


class ProfilerError(TrimtabError):
    """Triton Model Analyzer failed."""


class StackError(TrimtabError):
    """A local server did not start, or died."""


class PortTaken(StackError):
    """Somebody else listens where a part of ours was to."""

    def __init__(self, part: str, port: int) -> None:
        super().__init__(f"{part}: port {port} was taken meanwhile by another process: run it again")
        self.port = port

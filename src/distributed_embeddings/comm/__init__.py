"""How bytes travel between workers: one protocol, three backends, one place that finds the cluster."""

from .cluster import Cluster as Cluster
from .cluster import detect as detect
from .communicator import Communicator as Communicator
from .errors import CommunicationError as CommunicationError
from .launch import launch as launch
from .runtime import current as current
from .runtime import fail as fail
from .runtime import init as init
from .runtime import local_rank as local_rank
from .runtime import local_size as local_size
from .runtime import rank as rank
from .runtime import shutdown as shutdown
from .runtime import size as size

# A node has no users but root, and nothing on it outlives a reboot.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# The hosts of MPICH's mpiexec.hydra; Open MPI has its own files.
export HYDRA_HOST_FILE=/etc/mpi/hydra.hosts

//! TFTP: firmware fetches iPXE.

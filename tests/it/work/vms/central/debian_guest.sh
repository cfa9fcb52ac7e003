#!/bin/sh
# Builds a Debian guest in the folder $1: boot.iso with kernel and initramfs, root.qcow2 with cloud-init and an SSH server.
set -eu
cd "$1"
[ ! -e root.qcow2 ] || exit 0
rm -rf root cd root.raw
mmdebstrap --quiet --variant=minbase \
	--include=systemd-sysv,udev,iproute2,openssh-server,cloud-init,linux-image-cloud-amd64 \
	--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
	--customize-hook='printf "datasource_list: [NoCloud]\nssh_genkeytypes: [ed25519]\n" >"$1/etc/cloud/cloud.cfg.d/99-test.cfg"' \
	--customize-hook='chroot "$1" systemctl enable systemd-networkd' \
	--customize-hook='rm -f "$1/etc/machine-id" "$1"/etc/ssh/ssh_host_*' \
	bookworm root
mkdir cd
cp root/boot/vmlinuz-* cd/vmlinuz
cp root/boot/initrd.img-* cd/initrd
cp /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 cd
printf 'DEFAULT x\nLABEL x\n KERNEL vmlinuz\n APPEND initrd=initrd root=/dev/vda rw console=ttyS0 quiet\n' >cd/isolinux.cfg
genisoimage -quiet -R -b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table -o boot.iso cd
mke2fs -q -t ext4 -d root root.raw 2G
qemu-img convert -O qcow2 root.raw root.part
mv root.part root.qcow2
rm -rf root cd root.raw

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# where_cpu_has.sh FLAG PROGRAM: runs PROGRAM on a CPU that has this flag in /proc/cpuinfo. Other x86 CPUs have nothing to go without.
flag=$1
grep -q -w -m1 "$flag" /proc/cpuinfo && exec "$2"
echo "skipped: this CPU has no $flag"
exit 77

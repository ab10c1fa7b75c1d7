// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// sysNet is where the kernel tells of interfaces.
const sysNet = "/sys/class/net"

// speed is an interface's speed in Mbit/s; 0 if the kernel does not know. dir is sysNet.
//
// The file system may be of another network namespace than this process, whose interface of that name is another one:
// number and hardware address must agree. What a tunnel into a process (tun, tap) says is a constant and tells nothing.
func speed(dir string, i net.Interface) int {
	file := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, i.Name, name))
		if err != nil { // interfaces without a speed say so by an error
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	n, err := strconv.Atoi(file("speed"))
	if err != nil || n <= 0 || file("ifindex") != strconv.Itoa(i.Index) || file("address") != i.HardwareAddr.String() || file("tun_flags") != "" {
		return 0
	}
	return n
}

// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"

	"github.com/doorbell-net/doorbell/netplugin"
)

// duplicate has the network send frames twice. What is above its reliability cannot: a signal added twice would be harm.
func duplicate(c chance, base netplugin.Endpoint) error {
	if c.percent == 0 {
		return nil
	}
	d, ok := base.(netplugin.Duplicator)
	if !ok {
		return fmt.Errorf("%s=%d: the network has no frames that can be sent twice without harm; a network that makes itself reliable is accepted, such as tcp",
			rates[duplicates].word, c.percent)
	}
	d.Duplicate(c.hit)
	return nil
}

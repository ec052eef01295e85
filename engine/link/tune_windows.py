"""How a change is made and undone on Windows, by PowerShell.

PowerShell takes one text. What goes into it are numbers, addresses and the adapter's GUID, checked to be just that, so
that there is nothing to quote.
"""

from __future__ import annotations

from engine.link.commands import Runner
from engine.link.tune import FIREWALL_RULE, PREFIX, Before, Firewall, Profile, Run, Step

# An adapter counts the Ethernet header, too.
_JUMBO_HEADER_BYTES = 14

# From here on an adapter has to be told to take larger frames.
_USUAL_MTU = 1500


def profile_steps(change: Profile, before: Before) -> list[Step]:
    interface = f"-InterfaceIndex {_adapter(change.guid)}.InterfaceIndex -AddressFamily IPv4"
    jumbo = f"{_adapter(change.guid)} | Set-NetAdapterAdvancedProperty -RegistryKeyword '*JumboPacket' -RegistryValue"
    steps = []
    # Windows switches DHCP off by itself where an address is given, and not on again.
    if before.dhcp:
        steps.append(Step(undo=powershell(f"Set-NetIPInterface {interface} -Dhcp Enabled")))
    if not before.has_address:
        steps.append(
            Step(
                do=powershell(
                    f"New-NetIPAddress {interface} -IPAddress {change.host} -PrefixLength {PREFIX}"
                ),
                undo=powershell(f"Remove-NetIPAddress -IPAddress {change.host} -Confirm:$false"),
                there=powershell(f"Get-NetIPAddress -IPAddress {change.host}"),
            )
        )
    if change.mtu != before.mtu:
        if change.mtu > _USUAL_MTU and before.jumbo:
            wanted = max(change.mtu + _JUMBO_HEADER_BYTES, int(before.jumbo))
            steps.append(Step(do=powershell(f"{jumbo} {wanted}"), undo=powershell(f"{jumbo} {before.jumbo}")))
        steps.append(
            Step(
                do=powershell(f"Set-NetIPInterface {interface} -NlMtuBytes {change.mtu}"),
                undo=powershell(f"Set-NetIPInterface {interface} -NlMtuBytes {before.mtu}"),
            )
        )
    return steps


def firewall_steps(change: Firewall) -> list[Step]:
    """Baton's ports, for one address, while the network is a private one."""
    from engine.config import COURIER_PORT, NODE_PORT, PAIRING_PORT

    ports = ",".join(map(str, (COURIER_PORT, NODE_PORT, PAIRING_PORT)))
    return [
        Step(
            do=powershell(
                f"New-NetFirewallRule -Name {FIREWALL_RULE} -DisplayName {FIREWALL_RULE} -Direction Inbound "
                f"-Action Allow -Protocol TCP -LocalPort {ports} -RemoteAddress {change.peer_host} -Profile Private"
            ),
            undo=powershell(f"Remove-NetFirewallRule -Name {FIREWALL_RULE}"),
            there=powershell(f"Get-NetFirewallRule -Name {FIREWALL_RULE}"),
        )
    ]


def uses_dhcp(run: Runner, guid: str) -> bool:
    """Raises HostError."""
    index = f"{_adapter(guid)}.InterfaceIndex"
    asked = powershell(f'"$((Get-NetIPInterface -InterfaceIndex {index} -AddressFamily IPv4).Dhcp)"')
    return run(asked.words).strip() == "Enabled"


def jumbo_setting(run: Runner, guid: str) -> str:
    """The adapter's number of it, or "" where it has none. Raises HostError."""
    asked = powershell(
        f"{_adapter(guid)} | Get-NetAdapterAdvancedProperty -RegistryKeyword '*JumboPacket' "
        "-ErrorAction SilentlyContinue | ForEach-Object { $_.RegistryValue[0] }"
    )
    said = run(asked.words).strip()
    return said if said.isdigit() else ""


def powershell(command: str) -> Run:
    """Its errors end it with a status that says so."""
    return Run(
        words=(
            *("powershell", "-NoProfile", "-NonInteractive", "-Command"),
            f"$ErrorActionPreference = 'Stop'; {command}",
        )
    )


def _adapter(guid: str) -> str:
    return f"(Get-NetAdapter | Where-Object InterfaceGuid -eq '{guid}')"

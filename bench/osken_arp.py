"""A minimal os-ken controller that answers ARP requests from a table of all hosts (for
bench/load.py).

    python osken_arp.py PORT HOSTS

HOSTS is the number of hosts that `cool-load` simulates. Their addresses follow from their numbers.
"""
import logging
import sys

from os_ken import cfg
from os_ken.base.app_manager import AppManager, OSKenApp
from os_ken.controller import ofp_event
from os_ken.controller.handler import MAIN_DISPATCHER, set_ev_cls
from os_ken.lib.packet import arp, ethernet, packet
from os_ken.ofproto import ofproto_v1_3

FIRST = 0x0A000001


class ArpResponder(OSKenApp):
    """Answers ARP requests on behalf of the requested host, through the port of the request."""
    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]
    macs = {}

    @set_ev_cls(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)
    def packet_in(self, event):
        """Handles a packet-in. Ignores everything except ARP requests for known hosts."""
        message = event.msg
        request = packet.Packet(message.data).get_protocol(arp.arp)
        if request is None or request.opcode != arp.ARP_REQUEST or request.dst_ip not in self.macs:
            return
        mac = self.macs[request.dst_ip]
        reply = packet.Packet()
        reply.add_protocol(ethernet.ethernet(ethertype=0x0806, dst=request.src_mac, src=mac))
        reply.add_protocol(arp.arp(opcode=arp.ARP_REPLY, src_mac=mac, src_ip=request.dst_ip,
                                    dst_mac=request.src_mac, dst_ip=request.src_ip))
        reply.serialize()
        switch = message.datapath
        parser, protocol = switch.ofproto_parser, switch.ofproto
        switch.send_msg(parser.OFPPacketOut(
            datapath=switch, buffer_id=protocol.OFP_NO_BUFFER, in_port=protocol.OFPP_CONTROLLER,
            actions=[parser.OFPActionOutput(message.match["in_port"])], data=reply.data))


def main():
    """Runs until it is terminated."""
    port, hosts = map(int, sys.argv[1:])
    for host in range(hosts):
        ip = ".".join(map(str, (FIRST + host).to_bytes(4, "big")))
        ArpResponder.macs[ip] = "06:00:" + ":".join("%02x" % b for b in host.to_bytes(4, "big"))
    logging.basicConfig(level=logging.WARNING)
    cfg.CONF(args=["--ofp-listen-host", "127.0.0.1", "--ofp-tcp-listen-port", str(port)], project="os_ken")
    manager = AppManager.get_instance()
    manager.load_apps(["os_ken.controller.ofp_handler"])
    manager.applications_cls["answers"] = ArpResponder
    manager.create_contexts()
    for thread in manager.instantiate_apps():
        thread.wait()


if __name__ == "__main__":
    main()

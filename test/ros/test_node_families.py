"""The same node, robot and topics with checkpoints of other families: nothing else is chosen."""

import numpy as np
import pytest
from ros_harness import JOINTS, NodeProcess
from std_msgs.msg import String

from oxygen_ros import msg
from oxygen_ros.checkpoint import random_starvla, random_xiaomi_robotics_0

CAMERAS = ('base_0_rgb', 'left_wrist_0_rgb')  # as the contract 'demo' names them


@pytest.mark.parametrize('family', [random_xiaomi_robotics_0, random_starvla])
def test_chunks_and_words(tmp_path, peer, family):
    for heard in peer.heard.values():
        heard.clear()
    joints = {'state_dim': len(JOINTS), 'action_dim': len(JOINTS)}
    family.write_random_checkpoint(tmp_path / 'checkpoint', cameras=CAMERAS, horizon=10, **joints)
    process = NodeProcess(
        tmp_path,
        checkpoint=str(tmp_path / 'checkpoint'),
        robot='demo',
        autostart=True,
        status_period_s=0.1,
        max_rows=2,
        max_new_tokens=32,
    )
    try:
        peer.wait_for_state('waiting')
        peer.instruction.publish(String(data='put the red block on the tray'))
        peer.request.publish(msg.LanguageRequest(id='q', prompt=' What is next?', max_tokens=8))
        peer.frames_until(lambda: peer.ended('q') and len(peer.chunks()) >= 3)
        chunk = peer.chunks()[-1]
        assert list(chunk.joint_names) == JOINTS and chunk.horizon == 10
        assert np.isfinite(chunk.actions).all() and len(chunk.actions) == 10 * len(JOINTS)
        tokens = peer.answer('q')
        assert tokens[-1].reason in ('stop', 'length')
        assert tokens[0].frame in {c.frame for c in peer.chunks()}
        status = peer.heard['oxygen/status'][-1]
        assert status.kv_bytes_copied_between_frames == 0
        assert process.stop() == 0, process.log
        assert 'Traceback' not in process.log
    finally:
        process.kill()

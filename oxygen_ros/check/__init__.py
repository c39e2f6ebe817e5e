"""oxygen_check: does this checkpoint fit this robot, and does the robot send what is needed?"""

"""What a robot's controller is told, and when: plans, their merging, limits, stops. No rclpy."""

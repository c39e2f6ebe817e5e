"""ROS 2 side: messages in and out, one inference node; conversions and buffer need no rclpy."""
